"""What does privacy cost? FedAvg whose clients train with Opacus, over a range of epsilons.

python examples/opacus_client.py [--json]

Two clients hold one photograph each of the same four people. Each epsilon gets its own federation: the noise that
spends this epsilon over all rounds, what an attack recovers from the first round, and the accuracy after the last.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import torch
from torch import Tensor, nn

import fedleak
from fedleak.data import DataSpec, data_root, read
from fedleak.data.pixels import as_pixels, fitted
from fedleak.integrations.opacus import epsilon_spent, noise_for, train_private
from fedleak.types import Message, ModelSpec, Normalisation, Round, Setup, Transcript, Truth, Weights

PEOPLE, SIZE, CLIENTS, EACH = 4, 16, 2, 1
NORMAL = Normalisation((0.5,), (0.2,))
ROUNDS, LR, CLIP, DELTA = 15, 0.3, 1.0, 1e-3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(256, PEOPLE),
    )


def photographs() -> tuple[list[fedleak.Examples], fedleak.Examples]:
    faces = read(DataSpec(name="orl"), data_root()).train
    pixels = as_pixels(fitted(faces.inputs, (1, SIZE, SIZE)))
    of = [torch.nonzero(faces.labels == person).flatten() for person in range(PEOPLE)]

    def some(first: int, last: int) -> fedleak.Examples:
        index = torch.cat([photos[first:last] for photos in of])
        return fedleak.Examples(pixels[index], faces.labels[index])

    return [some(EACH * k, EACH * (k + 1)) for k in range(CLIENTS)], some(EACH * CLIENTS, 10)


def federate(clients: list[fedleak.Examples], noise: float, clip: float) -> tuple[nn.Module, Transcript, float]:
    """FedAvg by hand, as any framework does it: (final model, what the server saw in round 1, epsilon spent)."""
    model, seen, ledger = net(), [], []
    for index in range(1, ROUNDS + 1):
        start = {name: value.clone() for name, value in model.state_dict().items()}
        replies = [
            train_private(
                model,
                NORMAL.apply(own.inputs),
                own.labels,
                epochs=1,
                batch_size=len(own),
                lr=LR,
                noise_multiplier=noise,
                max_grad_norm=clip,
                seed=1000 * index + number,  # an audit repeats; a deployment leaves the seed out
            )
            for number, own in enumerate(clients)
        ]
        ledger.extend(replies[0].history)  # every client spends on its own examples only
        if index == 1:
            messages = tuple(
                Message(f"client-{k}", Weights(reply.weights), {"samples": len(clients[k])})
                for k, reply in enumerate(replies)
            )
            seen.append(Round(1, Weights(start), messages))
        model.load_state_dict({name: _mean([reply.weights[name] for reply in replies]) for name in start})
    setup = Setup(ModelSpec("example", factory=net), (1, SIZE, SIZE), PEOPLE, normalisation=NORMAL)
    return model, Transcript(setup, seen), epsilon_spent(ledger, DELTA)


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(dim=0)


def curve(epsilons: list[float]) -> list[dict[str, Any]]:
    clients, test = photographs()
    private = fedleak.Examples(*(torch.cat([getattr(c, part) for c in clients]) for part in ("inputs", "labels")))
    each = len(clients[0])
    used = {(1, f"client-{k}"): torch.arange(k * each, (k + 1) * each) for k in range(CLIENTS)}
    truth = Truth(private, tuple(f"client-{k}" for k in range(CLIENTS) for _ in range(each)), used, test)
    points = []
    for epsilon in epsilons:
        # All photographs of a client are in every step: its sampling rate is 1.
        noise = 0.0 if math.isinf(epsilon) else noise_for(epsilon, sample_rate=1.0, steps=ROUNDS, delta=DELTA)
        # Without a wish for privacy nothing is clipped either: plain training.
        model, transcript, spent = federate(clients, noise, 1e6 if math.isinf(epsilon) else CLIP)
        finding = fedleak.attack(transcript, "dlm_plus", steps=60, restarts=1, device="cpu")
        ssim = [score for one in fedleak.judge(finding, truth).values() for score in one.scores["ssim"]]
        with torch.no_grad():
            right = (model(NORMAL.apply(test.inputs)).argmax(1) == test.labels).float().mean()
        points.append(
            {
                "epsilon": None if math.isinf(spent) else round(spent, 3),
                "delta": DELTA,
                "noise_multiplier": round(noise, 3),
                "recovered": sum(score > 0.9 for score in ssim),
                "images": len(ssim),
                "best_ssim": max(ssim),
                "accuracy": float(right),
            }
        )
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args()
    torch.set_num_threads(1)
    points = curve([math.inf, 100.0, 20.0, 5.0, 1.0])
    if given.json:
        print(json.dumps({"points": points}))
        return
    print(f"{'epsilon':>9} {'noise':>7} {'recovered':>10} {'best SSIM':>10} {'accuracy':>9}")
    for point in points:
        spent = "none" if point["epsilon"] is None else f"{point['epsilon']:g}"
        share = f"{point['recovered']} of {point['images']}"
        print(
            f"{spent:>9} {point['noise_multiplier']:>7g} {share:>10} {point['best_ssim']:>10.3f} "
            f"{point['accuracy']:>9.1%}"
        )


if __name__ == "__main__":
    main()
