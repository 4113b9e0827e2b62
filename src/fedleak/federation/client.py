"""What a client does in a round: choose its examples, work on them, and defend what it sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedleak.defenses.base import Context
from fedleak.defenses.compose import Chain
from fedleak.errors import ShapeError
from fedleak.learning.precision import products_in
from fedleak.learning.sgd import GradientHook, Local
from fedleak.seeding import Seeds
from fedleak.types import Examples, Message, Named, Normalisation, Payload, Weights

__all__ = ["Batching", "Task", "Work", "prepare", "send", "work_all"]

Batching = Callable[[int, int, torch.Generator], tuple[Tensor, ...]]
"""(examples, round, generator) to index batches, in the order they are used."""

Work = Callable[[Named, Named, Tensor, Tensor, Sequence[Tensor], GradientHook | None], Local]
"""(parameters, buffers, inputs, targets, batches, hook) to what local work leaves: weights or gradients."""

CLIENTS_AT_ONCE = 64
SMALL_BATCH = 8
"""On a CPU stacking pays only for small batches: measured for the LeNet at 32x32, 3.7 times faster at batch 1,
even at 14, slower at 28."""


@dataclass(frozen=True, eq=False)
class Task:
    """One client's work in one round. `chosen` are the positions in its own examples that are used."""

    client: str
    chosen: Tensor
    inputs: Tensor
    targets: Tensor
    batches: tuple[Tensor, ...]
    context: Context
    seeds: Seeds

    def samples(self) -> int:
        return self.context.samples


def prepare(
    client: str,
    examples: Examples,
    limit: int | None,
    batching: Batching,
    normalisation: Normalisation,
    defense: Chain,
    context: Context,
    seeds: Seeds,
    device: str,
) -> Task:
    """Choose at most `limit` examples, defend them (stage "examples") and lay out the batches."""
    chosen = torch.arange(len(examples))
    if limit is not None and limit < len(examples):
        chosen = torch.randperm(len(examples), generator=seeds.generator("choice"))[:limit].sort().values
    batches = batching(len(chosen), context.round, seeds.generator("batches"))
    used: Tensor = torch.unique(torch.cat(batches))
    kept = replace(context, stage="examples", samples=len(used))
    defended: Examples = defense.apply(examples.take(chosen), kept, seeds.generator("defense", "examples"))
    if len(defended) != len(chosen):
        raise ShapeError(f"{client}: a defense turned {len(chosen)} examples into {len(defended)}; it must keep them")
    return Task(
        client=client,
        chosen=chosen[used],
        inputs=normalisation.apply(defended.inputs).to(device),
        targets=defended.labels.to(device),
        batches=tuple(batch.to(device) for batch in batches),
        context=kept,
        seeds=seeds,
    )


@products_in("float32")
def work_all(
    work: Work, tasks: Sequence[Task], broadcast: Weights, defense: Chain, vectorise: str = "auto"
) -> list[Local]:
    """Every client's local work. Clients with the same shapes are stacked; what cannot be stacked runs one by one.

    In float32: what a client sends must be what its images make, or a reconstruction is measured against rounding.
    """
    if any(member.stage == "gradients" for member in defense.members):
        # Their noise comes from one generator per client, which has no place under vmap.
        return [_alone(work, task, broadcast, defense) for task in tasks]
    results: dict[int, Local] = {}
    for positions in _alike(tasks):
        group = [tasks[at] for at in positions]
        done = _together(work, group, broadcast) if _worthwhile(group, vectorise) else None
        if done is None:
            done = [_alone(work, task, broadcast, defense) for task in group]
        results.update(zip(positions, done, strict=True))
    return [results[at] for at in range(len(tasks))]


def _alike(tasks: Sequence[Task]) -> Iterator[list[int]]:
    """Positions of tasks whose tensors can be stacked, in groups that fit memory."""
    groups: dict[Any, list[int]] = {}
    for at, task in enumerate(tasks):
        groups.setdefault((task.inputs.shape, tuple(len(batch) for batch in task.batches)), []).append(at)
    for group in groups.values():
        for start in range(0, len(group), CLIENTS_AT_ONCE):
            yield group[start : start + CLIENTS_AT_ONCE]


def _worthwhile(group: Sequence[Task], vectorise: str) -> bool:
    if vectorise != "auto":
        return vectorise == "always"
    first = group[0]
    return len(group) > 1 and (first.inputs.is_cuda or max(len(batch) for batch in first.batches) <= SMALL_BATCH)


def _together(work: Work, group: Sequence[Task], broadcast: Weights) -> list[Local] | None:
    """The whole group under one vmap; None where the user's module cannot be put under it."""
    count = len(group)
    buffers = {name: value.expand(count, *value.shape).clone() for name, value in broadcast.buffers.items()}
    inputs, targets = torch.stack([t.inputs for t in group]), torch.stack([t.targets for t in group])
    batches = [torch.stack(step) for step in zip(*(t.batches for t in group), strict=True)]

    def one(own: dict[str, Tensor], x: Tensor, y: Tensor, *order: Tensor) -> tuple[Named, Named]:
        local = work(broadcast.tensors, own, x, y, order, None)
        return local.parameters, local.buffers

    with _lent_generator(group[0].seeds, inputs.device):
        try:
            parameters, after = vmap(one, randomness="different")(buffers, inputs, targets, *batches)
        except (RuntimeError, NotImplementedError):
            return None  # a real fault of the module shows up again, in full, in the plain loop
    return [
        Local({name: v[at] for name, v in parameters.items()}, {name: v[at] for name, v in after.items()})
        for at in range(count)
    ]


def _alone(work: Work, task: Task, broadcast: Weights, defense: Chain) -> Local:
    hook: GradientHook | None = None
    if any(member.stage == "gradients" for member in defense.members):
        rng = task.seeds.generator("defense", "gradients")
        context = replace(task.context, stage="gradients")

        def hook(gradients: dict[str, Tensor], step: int) -> Named:
            changed: Named = defense.apply(gradients, context, rng)
            return changed

    with _lent_generator(task.seeds, task.inputs.device):
        return work(broadcast.tensors, broadcast.buffers, task.inputs, task.targets, task.batches, hook)


@contextmanager
def _lent_generator(seeds: Seeds, device: torch.device) -> Iterator[None]:
    """Dropout draws from torch's global generator: lend it a seeded one and give it back."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seeds.integer("modules"))
        yield


def send(
    task: Task, payload: Payload, defense: Chain, disclose: Sequence[str], labels: Tensor, classes: int
) -> Message:
    """Defend the message (stage "message") and say about it what the server is assumed to know."""
    context = replace(task.context, stage="message")
    defended: Payload = defense.apply(payload, context, task.seeds.generator("defense", "message"))
    facts: dict[str, Any] = {
        "samples": task.samples(),
        "label_counts": torch.bincount(labels, minlength=classes).tolist(),
        "unique_labels": len(torch.unique(labels)),
    }
    if "batch_labels" in disclose:
        facts["batch_labels"] = [task.targets[batch].tolist() for batch in task.batches]
    return Message(task.client, defended, {name: value for name, value in facts.items() if name in disclose})
