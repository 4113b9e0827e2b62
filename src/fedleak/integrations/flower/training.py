"""Local training that a client mod can answer for: defenses of the gradients act in the middle of it.

    app = ClientApp(mods=[defend(DPSGD(noise_multiplier=1.0, max_grad_norm=1.0))])
    train_defended(net, images, labels, epochs=1, batch_size=8, lr=0.1)     # inside @app.train()

A mod sees the message only, so what it must hold for the gradients it says here, and compares: the training has to
begin with what the server sent and the reply has to be what this training left. Steps of any other kind are noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedleak.defenses import Context
from fedleak.defenses.compose import Chain
from fedleak.errors import RefusedError, ShapeError
from fedleak.learning.batches import schedule
from fedleak.learning.functional import Loss, Network, loss_named
from fedleak.learning.sgd import GradientHook
from fedleak.learning.sgd import train as local_training
from fedleak.seeding import Seeds
from fedleak.types import Examples, Named, Normalisation

__all__ = ["Duty", "on_duty", "train_defended"]

STAGES = ("examples", "gradients")


@dataclass(eq=False)
class Duty:
    """What the running mod wants of the client's training, and what has become of it."""

    defense: Chain
    context: Context
    seeds: Seeds
    known: Mapping[str, Tensor]
    """The arrays as the defended training must find them: the broadcast, later what it left itself."""
    calls: int = 0

    def begun_with(self, module: nn.Module) -> None:
        state = module.state_dict()
        known = _under_names_of(state, self.known)
        shared = {name: value for name, value in state.items() if name in known}  # the rest is the client's own part
        odd = _differing(shared, known) if shared else next(iter(state))
        if odd is not None:
            raise RefusedError(
                f"train_defended: {odd!r} is not what the server sent, so steps came before it that no defense saw; "
                "load the broadcast and train with train_defended alone"
            )

    def ended_with(self, sent: Mapping[str, Tensor]) -> None:
        """The reply is the result of defended training, or nothing is sent."""
        names = "+".join(type(member).__name__ for member in self.defense.members if member.stage in STAGES)
        odd = _differing(sent, _under_names_of(sent, self.known))
        if not self.calls or odd is not None:
            why = f"array {odd!r} of the reply is not what train_defended left" if self.calls else "it was not called"
            raise RefusedError(
                f"defend({names}): acts inside the local training, and {why}, so nothing is sent; train with "
                "fedleak.integrations.flower.train_defended(net, images, labels, epochs=..., lr=...), or for dp_sgd "
                "with fedleak.integrations.opacus.train_private and without it here"
            )


_duty: ContextVar[Duty | None] = ContextVar("fedleak_duty", default=None)


@contextmanager
def on_duty(duty: Duty) -> Iterator[Duty]:
    """While the client's own code runs."""
    token = _duty.set(duty)
    try:
        yield duty
    finally:
        _duty.reset(token)


def train_defended(
    net: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    lr: float,
    batch_size: int | None = None,
    momentum: float = 0.0,
    loss: str | Loss = "cross_entropy",
    normalisation: Normalisation | None = None,
) -> float:
    """Train `net` in place by SGD on pixels `inputs`, as the client's `defend(...)` says; the loss after it.

    Outside a client with `defend`, or where its defenses concern the message only, it is plain SGD over shuffled
    batches. `batch_size` None: all examples in every step. Frozen parameters stay as they are.

    Sees: the client's own examples. Needs: for defenses of the gradients a module whose examples do not mix.
    Guarantees: what the chain of defenses guarantees for the gradients (`Plan(epochs=epochs)`).
    """
    duty = _duty.get()
    if duty is not None:
        duty.begun_with(net)
    seeds = Seeds(int(torch.randint(2**62, (1,)))) if duty is None else duty.seeds.under("call", duty.calls)
    examples, hook = _defended(Examples(inputs, labels), duty, seeds)
    place = next(net.parameters()).device
    pixels = examples.inputs.to(place)
    x, y = pixels if normalisation is None else normalisation.apply(pixels), examples.labels.to(place)
    network, criterion = Network(net.train()), loss_named(loss) if isinstance(loss, str) else loss
    frozen = {name for name, value in net.named_parameters() if not value.requires_grad}
    batches = [batch for epoch in schedule(len(y), batch_size, epochs, seeds.generator("order")) for batch in epoch]
    done = local_training(
        network,
        criterion,
        {name: value for name, value in network.initial().items() if name not in frozen},
        x,
        y,
        [batch.to(place) for batch in batches],
        lr=lr,
        momentum=momentum,
        buffers=network.buffers(),
        hook=hook,
    )
    net.load_state_dict({**done.parameters, **done.buffers}, strict=False)
    if duty is not None:
        duty.known = {name: value.detach().cpu().clone() for name, value in net.state_dict().items()}
        duty.calls += 1
    with torch.no_grad():
        return float(criterion(network(done.parameters, x), y))  # on copies of the buffers: another pass moves them


def _defended(own: Examples, duty: Duty | None, seeds: Seeds) -> tuple[Examples, GradientHook | None]:
    if duty is None:
        return own, None
    context = replace(duty.context, stage="examples", samples=len(own))
    kept: Examples = duty.defense.apply(own, context, seeds.generator("examples"))
    if len(kept) != len(own):
        raise ShapeError(f"train_defended: a defense turned {len(own)} examples into {len(kept)}; it must keep them")
    if not any(member.stage == "gradients" for member in duty.defense.members):
        return kept, None
    rng, at = seeds.generator("gradients"), replace(context, stage="gradients")

    def hook(gradients: dict[str, Tensor], step: int) -> Named:
        changed: Named = duty.defense.apply(gradients, at, rng)
        return changed

    return kept, hook


def _differing(found: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> str | None:
    """The first array that is not the known one, which is compared in the precision of the found."""
    for name, value in found.items():
        same = known.get(name)
        if same is None or not torch.equal(value.cpu(), same.cpu().to(value.dtype)):
            return name
    return None


def _under_names_of(named: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Older apps send a list of arrays, called "0", "1", ...: those go by their place."""
    places = [str(place) for place in range(len(known))]
    by_place = len(named) == len(known) and set(named) != set(known) and places in (list(named), list(known))
    return dict(zip(named, known.values(), strict=True)) if by_place else known
