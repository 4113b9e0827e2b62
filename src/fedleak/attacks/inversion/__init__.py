"""One inversion engine (distance, dummies, optimiser, rules of the search) and short cited recipes on it."""
