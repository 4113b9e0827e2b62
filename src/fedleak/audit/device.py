"""What a trial computes on: the device, to which its transcript is moved lazily, and one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedleak.errors import RefusedError
from fedleak.learning.memory import lacking, ran_out_of_memory
from fedleak.types import Gradients, Named, Payload, Predictions, PublicSet, Round, Transcript, Weights

__all__ = ["choose_device", "is_here", "on_device", "one_thread", "out_of_memory"]


def choose_device(asked: str, executor: str = "local") -> str:
    """`auto` takes a GPU where there is one here. A Ray cluster knows its GPUs itself: there `cuda` has to be said."""
    if asked not in ("auto", "cpu", "cuda"):
        raise RefusedError(f"device={asked!r}: choose auto, cpu or cuda")
    if asked == "cuda" and executor == "local" and not is_here("cuda"):
        raise RefusedError("device='cuda': torch sees no CUDA device here; use --device cpu")
    return "cuda" if asked == "cuda" or (asked == "auto" and is_here("cuda")) else "cpu"


def out_of_memory(problem: BaseException) -> str:
    """What an error says in one line, if it means that the device has no memory left; else nothing."""
    return lacking(problem) if ran_out_of_memory(problem) else ""


def is_here(device: str) -> bool:
    """Whether this process can compute on it."""
    return device == "cpu" or torch.cuda.is_available()


def _moved(named: Named, device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in named.items()}


def _payload(payload: Payload, device: str) -> Payload:
    match payload:
        case Gradients(tensors=tensors):
            return Gradients(_moved(tensors, device))
        case Weights(tensors=tensors, buffers=buffers):
            return Weights(_moved(tensors, device), _moved(buffers, device))
        case Predictions(values=values, scale=scale, index=index):
            return Predictions(values.to(device), scale, index.to(device))


def on_device(transcript: Transcript, device: str) -> Transcript:
    """The same transcript with its tensors on a device; rounds are moved when they are read."""
    if device == "cpu":
        return transcript

    def move(seen: Round) -> Round:
        received = tuple(replace(m, payload=_payload(m.payload, device)) for m in seen.received)
        broadcast = None if seen.broadcast is None else _payload(seen.broadcast, device)
        server = None if seen.server is None else _payload(seen.server, device)
        assert not isinstance(broadcast, Gradients)
        assert server is None or isinstance(server, Predictions)
        return Round(seen.index, broadcast, received, server)

    public = transcript.setup.public
    if public is not None:
        parts = (public.inputs, public.labels, public.domains)
        inputs, labels, domains = (None if part is None else part.to(device) for part in parts)
        assert inputs is not None
        public = PublicSet(inputs, labels, domains)
    return Transcript(replace(transcript.setup, public=public), transcript.mapped(move).rounds)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """The same bits whatever the number of cores: one torch thread per trial, put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
