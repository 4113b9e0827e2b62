"""Between Flower's ArrayRecord and fedleak's Weights, bit for bit.

A record is a state_dict, an ordinary mapping of names to arrays, or (older apps) a list of arrays named "0", "1", ...
What is trained and what is not (BatchNorm statistics) is told apart by the model where it is known, else by the names
that torch gives to buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedleak.errors import RefusedError
from fedleak.types import Named, Weights

__all__ = ["Layout", "array_record", "layout_of", "tensors_of", "weights_of"]

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Layout:
    """The names of a model's state_dict in order, which of them are parameters and which are buffers."""

    state: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]


def layout_of(model: Callable[[], nn.Module]) -> Layout:
    """How the arrays of this model are laid out. Tied weights count once, as `named_parameters()` does."""
    with torch.random.fork_rng(devices=[]):  # a constructor draws initial values; the federation's own must not move
        module = model()
    if not isinstance(module, nn.Module):
        raise RefusedError(f"model={model!r}: must make a torch.nn.Module, it made {type(module).__name__}")
    state = module.state_dict()
    return Layout(
        state=tuple(state),
        parameters=tuple(name for name, _ in module.named_parameters()),
        buffers=tuple(name for name, _ in module.named_buffers() if name in state),
        shapes={name: tuple(value.shape) for name, value in state.items()},
    )


def tensors_of(record: Mapping[str, Any]) -> dict[str, Tensor]:
    """The arrays of an ArrayRecord with their own precision."""
    return {str(name): _tensor(str(name), array) for name, array in record.items()}


def _tensor(name: str, array: Any) -> Tensor:
    try:
        values = np.asarray(array.numpy())
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        # A copy: Flower may free or reuse the bytes that it lends.
        return torch.from_numpy(values.copy()).reshape(values.shape)
    except (TypeError, ValueError) as problem:
        raise RefusedError(
            f"array {name!r}: dtype {array.dtype}, serialised as {array.stype!r}, is not readable ({problem}); "
            "send plain numbers"
        ) from None


def weights_of(record: Mapping[str, Any], layout: Layout | None = None) -> Weights:
    """The arrays as weights and buffers, the weights in the order of the model's `named_parameters()`."""
    found = tensors_of(record)
    if not found:
        raise RefusedError("its array record is empty")
    if layout is None:
        buffers = {name: value for name, value in found.items() if name.rsplit(".", 1)[-1] in BUFFERS}
        return Weights({name: value for name, value in found.items() if name not in buffers}, buffers)
    found = _named(found, layout)
    return Weights({name: found[name] for name in layout.parameters}, {name: found[name] for name in layout.buffers})


def _named(found: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The arrays under the model's own names; refused, with the names, where they are another model's."""
    if list(found) == [str(number) for number in range(len(layout.state))] and set(found) != set(layout.state):
        found = dict(zip(layout.state, found.values(), strict=True))
    missing = [name for name in (*layout.parameters, *layout.buffers) if name not in found]
    extra = [name for name in found if name not in layout.state]
    if missing or extra:
        raise RefusedError(
            f"its arrays are not those of the model (missing: {_listed(missing)}; not expected: {_listed(extra)}); "
            "give the network that the federation trains"
        )
    for name in (*layout.parameters, *layout.buffers):
        if tuple(found[name].shape) != layout.shapes[name]:
            raise RefusedError(
                f"its array {name!r} has shape {tuple(found[name].shape)}, the model's has {layout.shapes[name]}; "
                "give the network that the federation trains"
            )
    return found


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return shown or "none"


def array_record(tensors: Named, like: Mapping[str, Any] | None = None) -> Any:
    """An ArrayRecord of these tensors; with `like`, under its names and in its order."""
    from fedleak.integrations.flower.installed import flower

    app = flower()
    names = list(tensors) if like is None else list(like)
    return app.ArrayRecord({name: app.Array(tensors[name].detach().cpu().contiguous().numpy()) for name in names})
