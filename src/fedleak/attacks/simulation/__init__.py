"""Attacks that run a client's local training again on dummies, and what they need: label counts, priors, matching."""

__all__: list[str] = []
