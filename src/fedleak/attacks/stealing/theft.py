"""The stealing loop: round by round, a network for every client learns to predict what that client predicts.

Algorithm 1 of adamsa.txt, for all victims at once. The networks go on from where the round before left them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedleak.attacks.stealing.settings import StealingSettings
from fedleak.attacks.stealing.targets import Importance, Lesson, Observed, lesson, observe
from fedleak.errors import RefusedError
from fedleak.learning.batches import epoch_batches
from fedleak.learning.functional import cross_entropy
from fedleak.learning.stacked import Stack
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import ModelSpec, Progress, Setup, StolenModel, StolenModels, Trace, Transcript, Weights

__all__ = ["steal"]


@dataclass(eq=False)
class _Imitation:
    """One network on its way: what it was after every round, and how far from its target."""

    seeds: Seeds
    history: list[tuple[int, Weights]] = field(default_factory=list)
    objective: dict[int, float] = field(default_factory=dict)
    diverged: str = ""

    @property
    def last(self) -> float:
        return self.objective[self.history[-1][0]] if self.history else math.inf


def steal(
    seen: Transcript,
    settings: StealingSettings,
    *,
    reach: int,
    first_weight: float,
    rule: Importance,
    rng: torch.Generator,
    progress: Progress,
) -> StolenModels:
    """An imitation of every client's model. `reach` is T0, how many rounds back the target looks."""
    last = seen.round(settings.round).index
    observed = observe(seen, last)[: settings.victims]
    spec = settings.model(seen.setup)
    module = _checked(seen.setup, spec)
    seeds = Seeds(int(torch.randint(0, 2**62, (1,), generator=rng)))
    usable: list[Observed] = []
    lessons: dict[str, dict[int, Lesson]] = {}
    refused: dict[str, str] = {one.sender: one.refused for one in observed if one.refused}
    for one in observed:
        if one.sender in refused:
            continue
        try:
            lessons[one.sender] = {now: lesson(one, now, reach, first_weight, rule) for now in one.sent}
            usable.append(one)
        except RefusedError as reason:
            refused[one.sender] = str(reason)
    if not usable:
        raise RefusedError(_nobody(refused))
    found: dict[str, StolenModel] = {}
    objectives: dict[str, dict[int, float]] = {}
    notes: dict[str, object] = {"network": spec.name, "rounds": last, "victims": len(usable)}
    # What networks draw (dropout) is drawn for all of a stack in turn: a copy must not depend on those beside it.
    together = 1 if _draws(module, seen.setup.input_shape) else settings.chunk
    chunks = [usable[at : at + together] for at in range(0, len(usable), together)]
    for number, chunk in enumerate(chunks):
        stack_notes, made = _imitate(
            seen.setup,
            spec,
            [lessons[one.sender] for one in chunk],
            [seeds.under(one.sender) for one in chunk],
            settings,
            _part(progress, number, len(chunks)),
        )
        notes.update(stack_notes)
        for one, best in zip(chunk, made, strict=True):
            objectives[one.sender] = best.objective
            found[one.sender] = _stolen(one, best, spec, seen.setup, settings)
    empty = {
        s: StolenModel(s, last, spec, Weights({}), status="refused", reason=reason) for s, reason in refused.items()
    }
    victims = tuple(found.get(one.sender) or empty[one.sender] for one in observed)
    return StolenModels(victims, _trace([v.sender for v in victims], objectives), notes)


def _nobody(refused: dict[str, str]) -> str:
    """Why not a single client can be imitated; some that can are attacked, and the others say why they are not."""
    first = next(iter(refused.values()))
    others = f" ({len(refused) - 1} more cannot be learned from either)" if len(refused) > 1 else ""
    return f"{first}{others}"


def _draws(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a network draws anything while it is trained: layers that drop, or what one's own does inside."""
    if any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in module.modules()):
        return True
    shown, said = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0)), []
    module.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            said.append(module(shown))
    return any(not torch.equal(said[0], other) for other in said[1:])


def _checked(setup: Setup, spec: ModelSpec) -> nn.Module:
    """A network of this kind, if it says as much about an image as the clients do."""
    if setup.public is None:
        raise RefusedError("public=None: the transcript holds no public set, and predictions mean nothing without it")
    pictures = setup.public.inputs
    if tuple(pictures.shape[1:]) != tuple(setup.input_shape):
        raise RefusedError(
            f"input_shape={tuple(setup.input_shape)}: the public pictures are {tuple(pictures.shape[1:])}; leave "
            "--input-shape out (Python: input_shape), or record both alike"
        )
    if not bool(torch.isfinite(pictures).all()):
        raise RefusedError("public set: its pictures hold numbers that are not finite; record the set that clients saw")
    module = build_model(spec, setup.input_shape, setup.classes).eval()
    with torch.no_grad():
        outputs = module(torch.zeros(2, *setup.input_shape))
    if tuple(outputs.shape) != (2, setup.classes):
        raise RefusedError(
            f"network={spec.name!r}: gives {tuple(outputs.shape)[1:]} numbers for an image, but clients predict "
            f"{setup.classes} classes; choose an imitation with {setup.classes} outputs"
        )
    return module


def _imitate(
    setup: Setup,
    spec: ModelSpec,
    lessons: Sequence[dict[int, Lesson]],
    seeds: Sequence[Seeds],
    settings: StealingSettings,
    progress: Progress,
) -> tuple[dict[str, str], list[_Imitation]]:
    """The best imitation of each of these victims, trained as one stack."""
    assert setup.public is not None  # _checked
    starts = settings.restarts + 1
    made = [_Imitation(own.under("start", start)) for own in seeds for start in range(starts)]
    of = [own for own in lessons for _ in range(starts)]
    modules = [build_model(spec, setup.input_shape, setup.classes, one.seeds.generator("model")) for one in made]
    device = next(iter(lessons[0].values())).target.device
    stack = Stack(modules, lr=settings.lr, device=device)
    public = setup.normalisation.apply(setup.public.inputs.to(device))
    rounds = sorted({now for own in lessons for now in own})
    for done, now in enumerate(rounds):
        inputs, targets, order = [], [], []
        for one, own in zip(made, of, strict=True):
            learns = now in own and not one.diverged
            # A network that sits this round out still needs tensors to not look at.
            taught = own[now] if now in own else next(iter(own.values()))
            inputs.append(_rows(public, taught.index))
            targets.append(taught.target)
            order.append(
                list(_batches(len(taught.index), settings, one.seeds.generator("order", now))) if learns else []
            )
        shared = inputs[0] if all(one is public for one in inputs) else inputs
        stack.fit(cross_entropy, shared, [targets], order, rng=seeds[0].generator("modules", now))
        for k, (one, own) in enumerate(zip(made, of, strict=True)):
            if now in own and not one.diverged:
                _note(one, stack, k, now, inputs[k], targets[k], settings)
        progress(done + 1, len(rounds))
    groups = [made[at : at + starts] for at in range(0, len(made), starts)]
    return dict(stack.notes), [min(group, key=lambda one: (bool(one.diverged), one.last)) for group in groups]


def _rows(public: Tensor, index: Tensor) -> Tensor:
    """The predicted public inputs; the public set itself where that is all of it, so that networks share it."""
    if len(index) == len(public) and bool((index.cpu() == torch.arange(len(index))).all()):
        return public
    return public[index.to(public.device)]


def _batches(count: int, settings: StealingSettings, rng: torch.Generator) -> Iterator[Tensor]:
    size = min(settings.batch_size, count)
    wanted = settings.steps or settings.epochs * math.ceil(count / size)
    while wanted > 0:
        epoch = epoch_batches(count, size, rng)[:wanted]
        wanted -= len(epoch)
        yield from epoch


def _note(
    one: _Imitation, stack: Stack, k: int, now: int, inputs: Tensor, target: Tensor, settings: StealingSettings
) -> None:
    """What network k is after this round; one that is not finite any more stays what it was."""
    outputs = _outputs(stack, k, inputs)
    shares = target / target.sum(dim=-1, keepdim=True)
    apart = float((shares * (shares.clamp_min(1e-12).log() - torch.log_softmax(outputs, dim=-1))).sum(dim=-1).mean())
    if not math.isfinite(apart):
        one.diverged = f"the imitation diverged in round {now}; lower lr, which is {settings.lr:g}"
        return
    parameters, buffers = stack.weights(k)
    if not settings.history:
        one.history.clear()
    one.history.append((now, Weights(parameters, buffers)))
    one.objective[now] = apart


def _outputs(stack: Stack, k: int, inputs: Tensor) -> Tensor:
    module = stack.modules[k].eval()
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(inputs, 1024)])


def _stolen(
    observed: Observed, best: _Imitation, spec: ModelSpec, setup: Setup, settings: StealingSettings
) -> StolenModel:
    """The imitation under the last round in which its victim sent something: that is the model it imitates."""
    at = max(observed.sent)
    if not best.history:
        return StolenModel(observed.sender, at, spec, Weights({}), status="refused", reason=best.diverged)
    return StolenModel(
        sender=observed.sender,
        round=at,
        model=spec,
        weights=best.history[-1][1],
        normalisation=setup.normalisation,
        history=tuple(best.history) if settings.history else (),
        objective=best.last,
        status="diverged" if best.diverged else "ok",
        reason=best.diverged,
    )


def _trace(senders: Sequence[str], objectives: dict[str, dict[int, float]]) -> Trace:
    """The objective after every round; nan where a client did not take part."""
    rounds = sorted({now for own in objectives.values() for now in own})
    rows = [[objectives.get(sender, {}).get(now, float("nan")) for now in rounds] for sender in senders]
    return Trace(tuple(rounds), torch.tensor(rows).reshape(len(senders), len(rounds)))


def _part(progress: Progress, number: int, parts: int) -> Progress:
    return lambda done, total: progress(number * total + done, parts * total)
