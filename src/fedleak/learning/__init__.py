"""Pure functions for learning: the one place that both federation and attacks import."""
