"""What a network is fed and what it answers: where this package looks for it."""

from __future__ import annotations

from fedleak.learning.shapes import classes_in, input_shape_of, picture_in

__all__ = ["classes_in", "input_shape_of", "picture_in"]
