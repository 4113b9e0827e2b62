"""`fedleak bench dlg`: many victims as one batch against torch.optim.LBFGS, one image at a time.

Both minimise the same objective (DLG on the LeNet at 32x32) with the same L-BFGS settings and tolerances 0. A start may
diverge and end early, so what is compared is the time of one evaluation of objective and slope for one victim, with
all that L-BFGS does around it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedleak.attacks import ATTACKS
from fedleak.bench.measure import Result, floor_seconds, interleaved, peak_memory
from fedleak.learning.functional import Network, loss_named
from fedleak.models import build_model
from fedleak.seeding import Seeds
from fedleak.types import Gradients, Message, ModelSpec, Round, Setup, Transcript, Weights

__all__ = ["bench_dlg"]

SHAPE, CLASSES = (1, 32, 32), 10
OUTER, INNER, HISTORY = 2, 20, 100
VICTIMS = {"cpu": 20, "cuda": 50}


def _problem(victims: int, device: str) -> tuple[Transcript, nn.Module, Tensor, Tensor]:
    """Smooth random pictures: speed does not depend on what is in them."""
    rng = Seeds(0).generator("bench")
    module = build_model(ModelSpec("lenet"), SHAPE, CLASSES, rng).to(device)
    coarse = torch.rand(victims, 1, 8, 8, generator=rng)
    pictures = F.interpolate(coarse, size=SHAPE[1:], mode="bilinear", align_corners=False).to(device)
    labels = torch.randint(0, CLASSES, (victims,), generator=rng).to(device)
    network, loss = Network(module), loss_named("cross_entropy")
    weights = network.initial()
    messages = []
    for number in range(victims):
        own = {name: value.clone().requires_grad_() for name, value in weights.items()}
        value = loss(network(own, pictures[number : number + 1]), labels[number : number + 1])
        found = torch.autograd.grad(value, list(own.values()))
        messages.append(Message(f"client-{number}", Gradients(dict(zip(own, found, strict=True))), {"samples": 1}))
    setup = Setup(ModelSpec("lenet"), SHAPE, CLASSES)
    return Transcript(setup, [Round(1, Weights(weights), tuple(messages))]), module, pictures, labels


def _one_at_a_time(module: nn.Module, seen: Transcript, victims: int, device: str) -> int:
    """The plain way: one image, torch.optim.LBFGS, create_graph. Returns the number of evaluations."""
    parameters, evaluations = list(module.parameters()), 0
    for message in seen.rounds[0].received[:victims]:
        assert isinstance(message.payload, Gradients)
        target = list(message.payload.tensors.values())
        rng = Seeds(1).generator("start", message.sender)
        picture = torch.randn(1, *SHAPE, generator=rng).to(device).requires_grad_()
        label = torch.randn(1, CLASSES, generator=rng).to(device).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [picture, label],
            lr=1.0,
            max_iter=INNER,
            max_eval=10**9,
            history_size=HISTORY,
            tolerance_grad=0.0,
            tolerance_change=0.0,
        )

        def closure(
            picture: Tensor = picture,
            label: Tensor = label,
            target: list[Tensor] = target,
            optimiser: torch.optim.LBFGS = optimiser,
        ) -> Tensor:
            nonlocal evaluations
            evaluations += 1
            optimiser.zero_grad()
            distance = _distance(module, parameters, picture, label, target)
            picture.grad, label.grad = torch.autograd.grad(distance, (picture, label))
            return distance.detach()

        for _ in range(OUTER):
            optimiser.step(closure)  # type: ignore[no-untyped-call]
    return evaluations


def _distance(
    module: nn.Module, parameters: list[nn.Parameter], picture: Tensor, label: Tensor, target: list[Tensor]
) -> Tensor:
    loss = -(label.softmax(dim=-1) * F.log_softmax(module(picture), dim=-1)).sum()
    found = torch.autograd.grad(loss, parameters, create_graph=True)
    return torch.stack([((a - b) ** 2).sum() for a, b in zip(found, target, strict=True)]).sum()


def _together(seen: Transcript, victims: int) -> int:
    """fedleak's way: all victims as one batch. Returns the number of evaluations."""
    attack = ATTACKS["dlg"](
        preset="paper", steps=OUTER, inner=INNER, history=HISTORY, tolerance_grad=0.0, tolerance_change=0.0, snapshots=0
    )
    first = seen.rounds[0]
    few = Transcript(seen.setup, [Round(1, first.broadcast, first.received[:victims])])
    return int(attack(few, rng=Seeds(2).generator("bench")).notes["evaluations"])


def bench_dlg(device: str) -> Result:
    """Seconds per victim and evaluation, and ratios at many victims (vs_eager) and at one (vs_eager_1)."""
    victims = VICTIMS[device]
    seen, module, pictures, _ = _problem(victims, device)
    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)  # as the runner does: one thread a trial
    try:
        seconds = interleaved(
            {
                f"batch_{victims}": lambda: _together(seen, victims),
                f"torch_lbfgs_{victims}": lambda: _one_at_a_time(module, seen, victims, device),
                "batch_1": lambda: _together(seen, 1),
                "torch_lbfgs_1": lambda: _one_at_a_time(module, seen, 1, device),
            },
            repeats=3,
            device=device,
        )
        floor = floor_seconds(_operations(module, pictures), device)
    finally:
        torch.set_num_threads(before)
    ratios = {
        "vs_eager": seconds[f"torch_lbfgs_{victims}"] / seconds[f"batch_{victims}"],
        "vs_eager_1": seconds["torch_lbfgs_1"] / seconds["batch_1"],
        "vs_jax": None,
    }
    return Result(
        name="dlg",
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        ratios=ratios,
        seconds=seconds,
        peak_memory=peak_memory(device),
        floor_seconds=floor,
        conditions={"victims": victims, "outer": OUTER, "inner": INNER, "history": HISTORY, "model": "lenet 32x32"},
    )


def _operations(module: nn.Module, pictures: Tensor) -> float:
    """About what one evaluation of objective and slope must compute: six times the forward pass.

    Once forward, twice for the gradient by the weights, three times to pull its derivative back to the picture.
    """
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(pictures[:1])
    return 6.0 * float(counter.get_total_flops())
