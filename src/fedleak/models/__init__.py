"""The papers' networks. A model is built from its spec, an input shape, a number of classes and a generator."""

from fedleak.models.build import build_model
from fedleak.models.registry import MODELS

__all__ = ["MODELS", "build_model"]
