"""Record a Flower run: `record(strategy, out=...)` is the same strategy, and writes down what the server sees.

The wrapped strategy is an instance of a subclass of the strategy's own class, so that overridden methods, attributes
and isinstance checks go on working; only `configure_train` and `aggregate_train` are looked at from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from fedleak.errors import RefusedError
from fedleak.integrations.flower.recorder import Recorder
from fedleak.transcript.manifest import MANIFEST
from fedleak.types import Normalisation

__all__ = ["record"]

S = TypeVar("S")


def record(
    strategy: S,
    out: Path | str,
    *,
    model: Callable[[], nn.Module] | None = None,
    input_shape: tuple[int, ...] | None = None,
    classes: int | None = None,
    normalisation: Normalisation | tuple[float, float] | None = None,
    disclosed: Mapping[str, Any] | None = None,
    sender: Callable[[Any], str] | None = None,
    quantisation: Callable[[Any], Mapping[str, Any]] | None = None,
) -> S:
    """The same strategy, which writes a transcript to the new folder `out` round by round while the federation runs.

    `model` makes the network that is trained: it tells buffers from parameters and, where its layers allow, the size
    of the pictures. `input_shape` (C, H, W), `classes` and `normalisation` (what is done to pixels in [0, 1] before the
    network sees them; a mean and a standard deviation will do) are what an attack has to know; a shape that is not
    given is read off the network where possible. `disclosed` adds what the server is assumed to know of the whole run.
    `sender` names the client behind a reply; without it the name is client-<partition-id> where the reply has that
    metric, else node-<node id>. `quantisation` says of a reply whose arrays are whole numbers what they mean, as
    `fedleak.learning.quantised` reads it: {"scale": ..., "zero_point": ..., "of": "weights" or "update"}.

    Sees: the arrays and configuration sent out, every reply. Needs: a strategy of the Message API (flwr >= 1.24).
    Guarantees: the strategy's results do not change; after a kill every finished round is readable.
    """
    cls = type(strategy)
    if not all(callable(getattr(strategy, name, None)) for name in ("configure_train", "aggregate_train")):
        old = " It is a strategy of flwr.server: take the one of the same name in flwr.serverapp.strategy."
        raise RefusedError(
            f"strategy={cls.__name__}: has no configure_train and aggregate_train, which the Message API of "
            f"flwr >= 1.24 asks for.{old if hasattr(strategy, 'configure_fit') else ''}"
        )
    folder = Path(out)
    if (folder / MANIFEST).exists():
        raise RefusedError(f"out={folder}: there is a recording already; record to a new folder")
    if isinstance(normalisation, tuple):
        normalisation = Normalisation((float(normalisation[0]),), (float(normalisation[1]),))
    recorder = Recorder(folder, model, input_shape, classes, normalisation, disclosed or {}, sender, quantisation)
    recording = type(f"Recorded{cls.__name__}", (_Recorded, cls), {"__doc__": cls.__doc__})
    recorded: Any = object.__new__(recording)
    recorded.__dict__.update(vars(strategy), fedleak_recorder=recorder)
    return cast(S, recorded)


class _Recorded:
    """In front of the strategy's own class: looks, and passes on."""

    fedleak_recorder: Recorder

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        messages = list(super().configure_train(server_round, arrays, config, grid))  # type: ignore[misc]
        self.fedleak_recorder.sent(server_round, arrays, messages)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        received = list(replies)  # may be an iterator, and it is read twice
        key = getattr(self, "weighted_by_key", "num-examples")
        self.fedleak_recorder.received(server_round, received, key)
        return super().aggregate_train(server_round, received)  # type: ignore[misc]
