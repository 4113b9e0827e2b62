"""fedleak measures what a federated-learning deployment leaks."""

__version__ = "0.1.0"
