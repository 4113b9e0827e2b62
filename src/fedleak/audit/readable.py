"""A recording as an attack can read it: decoded where it is quantised, regrouped for the network it was taken from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedleak.audit.known import knowing
from fedleak.errors import FedleakError, RefusedError
from fedleak.factories import raised
from fedleak.learning.own_models import BatchNorm, prepare
from fedleak.learning.quantised import dequantised
from fedleak.learning.shapes import input_shape_of
from fedleak.types import Setup, Transcript, Weights

__all__ = ["BATCHNORM", "parse_shape", "readable"]

BATCHNORM: tuple[BatchNorm, ...] = ("batch", "running")


def readable(
    transcript: Transcript,
    model: Callable[[], nn.Module] | None = None,
    *,
    batchnorm: str = "batch",
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    known: Mapping[str, Any] | None = None,
) -> Transcript:
    """The transcript for an attack.

    Quantised messages that say their scale are decoded. With `model`, a network of one's own: dropout is off, BatchNorm
    uses the statistics of the "batch" or the "running" ones, frozen layers are among the buffers, parameters are in the
    network's order and in float32. `input_shape` and `classes` replace what the recording says about the pictures,
    which a deployment often cannot know; where they are not given, the network is asked. `known` is what else the
    server is taken to know of its clients (samples, batch_size, lr, target_labels, ...).
    """
    seen = knowing(dequantised(transcript), known or {})
    if model is not None:
        mode = next((one for one in BATCHNORM if one == batchnorm), None)
        if mode is None:
            raise RefusedError(f"batchnorm={batchnorm!r}: must be {' or '.join(BATCHNORM)}")
        seen = prepare(seen, model, batchnorm=mode)
    setup = seen.setup
    if input_shape is not None or classes is not None:
        setup = replace(setup, input_shape=input_shape or setup.input_shape, classes=classes or setup.classes)
    if not setup.input_shape and _updates(seen):
        setup = replace(setup, input_shape=_looked_up(seen))
    if model is not None and _updates(seen):
        setup = replace(setup, classes=_answered(setup, classes))
    elif model is not None and setup.public is not None:
        # Clients sent predictions: the classes are those they predict, and a network of others imitates nobody.
        told = _answered(setup, None)
        if told != setup.classes:
            raise RefusedError(
                f"model: gives {told} numbers for a picture, but the clients of this recording predict "
                f"{setup.classes} classes; give a network with {setup.classes} outputs"
            )
    return replace(seen, setup=setup)


def parse_shape(text: str) -> tuple[int, ...]:
    """'C,H,W' as numbers.

    >>> parse_shape("3,32,32")
    (3, 32, 32)
    """
    parts = text.replace("x", ",").split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise RefusedError(f"input-shape={text!r}: must be C,H,W: channels, height and width, for instance 3,32,32")
    return tuple(int(part) for part in parts)


def _updates(seen: Transcript) -> bool:
    return len(seen.rounds) > 0 and isinstance(seen.rounds[0].broadcast, Weights)


def _answered(setup: Setup, given: int | None) -> int:
    """The number of classes, once the network has been shown a picture of the stated size."""
    assert setup.model.factory is not None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            # Two pictures: BatchNorm over one number has no variance.
            outputs = setup.model.factory()(torch.zeros(2, *setup.input_shape))
        except Exception as problem:  # whatever a network of somebody's own raises
            if isinstance(problem, FedleakError):
                raise
            said = problem if isinstance(problem, RuntimeError | ValueError | IndexError) else raised(problem)
            raise RefusedError(
                f"input_shape={setup.input_shape}: the network does not take such pictures ({said}); say their size "
                "(Python: input_shape=(C, H, W); command line: --input-shape C,H,W)"
            ) from None
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise RefusedError("model: must answer a batch of pictures with one row of class scores each, (n, classes)")
    if given is not None and given != outputs.shape[1]:
        raise RefusedError(f"classes={given}: the network tells {outputs.shape[1]} classes apart; leave classes out")
    return int(outputs.shape[1])


def _looked_up(seen: Transcript) -> tuple[int, ...]:
    broadcast = seen.rounds[0].broadcast
    assert isinstance(broadcast, Weights)
    factory, held = seen.setup.model.factory, {**broadcast.tensors, **broadcast.buffers}
    if factory is not None:
        # In the network's own order: the first layer, which is asked for its channels, may be a frozen one.
        with torch.random.fork_rng(devices=[]):
            held = {name: held[name] for name in factory().state_dict() if name in held}
    shape = input_shape_of(factory, held)
    if not shape:
        raise RefusedError(
            "input_shape=(): the recording does not say how large a picture is, and the network takes more than one "
            "size; say it (Python: input_shape=(C, H, W); command line: --input-shape C,H,W)"
        )
    return shape
