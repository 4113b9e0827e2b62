"""Replayed evaluations: what a graph is given, when one is recorded, and what happens where none can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from fedleak.attacks.inversion import capture
from fedleak.attacks.inversion.capture import KEPT, WORTH, Replay
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.types import Message, Round, Transcript, Weights

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def work(points: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    away = points - given[0]
    return away.square().sum(dim=1), 2 * away


class Recorded:
    """Stands for a CUDA graph: computes from the tensors it was recorded with, into those it was recorded with."""

    def __init__(self, points: Tensor, given: tuple[Tensor, ...], results: tuple[Tensor, Tensor]) -> None:
        self.points, self.given, self.results, self.played = points, given, results, 0

    def replay(self) -> None:
        self.played += 1
        for kept, fresh in zip(self.results, work(self.points, self.given), strict=True):
            kept.copy_(fresh)


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Replay:
    made = Replay(work)

    def record(points: Tensor, given: Sequence[Tensor]) -> None:
        own, copies = points.clone(), tuple(one.clone() for one in given)
        results = work(own, copies)
        if len(made._graphs) >= KEPT:
            made._graphs.pop(next(iter(made._graphs)))
        made._graphs[len(points)] = capture._Graph(Recorded(own, copies, results), own, copies, *results)

    monkeypatch.setattr(made, "_record", record)
    return made


def random(rows: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 3, generator=rng), [torch.randn(rows, 3, generator=rng)]


def test_every_call_is_what_the_work_says(replay: Replay) -> None:
    """Whatever the order of batch sizes: recorded, filled up from fewer rows, or computed."""
    for seed, rows in enumerate([8] * 5 + [7, 5, 8, 4, 3, 8, 6] + [3] * 4 + [16] * 4):
        points, given = random(rows, seed)
        torch.testing.assert_close(replay(points, given), work(points, given))
    assert sorted(replay._graphs) == [3, 8, 16]


def test_a_batch_is_recorded_once_it_was_seen_often_and_serves_more_than_half_of_its_rows(replay: Replay) -> None:
    points, given = random(8, 0)
    for _ in range(WORTH - 1):
        replay(points, given)
    assert replay._graphs == {}
    replay(points, given)
    graph = replay._graphs[8].graph
    replay(points[:5], [given[0][:5]])
    assert graph.played == 2
    replay(points[:4], [given[0][:4]])
    assert graph.played == 2


def test_what_is_returned_is_not_overwritten_by_the_next_call(replay: Replay) -> None:
    points, given = random(4, 0)
    for _ in range(WORTH):
        first = replay(points, given)
    before = [one.clone() for one in first]
    replay(points + 1, given)
    assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))


def test_few_graphs_are_kept(replay: Replay) -> None:
    for power in range(KEPT + 2):
        for _ in range(WORTH):
            replay(*random(2**power, 0))
    assert sorted(replay._graphs) == [2**power for power in range(2, KEPT + 2)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here recording works")
def test_where_nothing_can_be_recorded_it_is_computed_and_said() -> None:
    replay = Replay(work)
    points, given = random(4, 0)
    for _ in range(WORTH + 2):
        torch.testing.assert_close(replay(points, given), work(points, given))
    assert replay.trouble.startswith("evaluations are not replayed as a CUDA graph (")


@needs_cuda
def test_on_a_gpu_the_images_come_back_and_graphs_are_used(scene: Callable, psnr: Callable) -> None:
    made = scene((1, 1, 1), sends="weights")
    (round_,) = made.transcript.rounds

    def moved(weights: Weights) -> Weights:
        return Weights({name: value.cuda() for name, value in weights.tensors.items()})

    messages = tuple(Message(m.sender, moved(m.payload), m.disclosed) for m in round_.received)
    seen = Transcript(made.transcript.setup, (Round(1, moved(round_.broadcast), messages),))
    found = DLMPlus(steps=60)(seen, rng=torch.Generator().manual_seed(0))
    assert "uncaptured" not in found.notes
    for victim, images in zip(found.victims, made.images, strict=True):
        assert psnr(victim.inputs.cpu(), images) > 30
