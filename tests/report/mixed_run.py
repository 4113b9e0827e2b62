"""A made-up run with every kind of finding: images and labels from weights, people and models from predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder

PEOPLE, CLIENTS, TEST = 20, 4, 200
ACCURACY = {"none": 0.66, "gaussian(sigma=1)": 0.6, "gaussian(sigma=5)": 0.4, "label_only": 0.64}
# attack to the share of people recognised (or the accuracy of the copy) under each of the defenses of fedmd
PICTURES = {"pli": (0.85, 0.6, 0.1, 0.3), "tbi": (0.15, 0.1, 0.05, 0.1)}
COPIES = {"msa": (0.58, 0.5, 0.14, 0.45), "adamsa": (0.63, 0.52, 0.1, 0.47)}
SPEC = """\
metrics = ["psnr", "ssim", "recovered", "label_errors", "attack_accuracy", "fidelity", "victim_accuracy"]
seeds = [0]

[data]
name = "orl"
clients = 4
"""


def write_mixed_run(path: Path, faces: NDArray[np.float64], deployment: str | None = None) -> Path:
    """`faces` are (PEOPLE, 1, H, W)."""
    path.mkdir(parents=True)
    arm = f'\n[deployment]\narm = "{deployment}"\n' if deployment else ""
    (path / "spec.toml").write_text(SPEC + arm, encoding="utf-8")
    folder, draw = RunFolder(path), np.random.default_rng(1)
    rows = _weights(folder, faces, draw)
    for number, (defense, worth) in enumerate(ACCURACY.items()):
        known = folder.put_json(_provenance(defense, worth))
        # Each of the clients has a model of its own: shares of four, not 0 or 1.
        shares = [float(v) for v in np.round(draw.binomial(CLIENTS, worth, TEST) / CLIENTS, 2)]
        artifacts = {"provenance": known, "entropies": folder.put(save(_entropies(draw)))}
        rows.append(_row("fedmd", defense, "none", {"utility": shares}, artifacts=artifacts))
        for attack, shares_of in PICTURES.items():
            rows.append(_people(folder, defense, attack, shares_of[number], faces, draw, known))
        for attack, levels in COPIES.items():
            rows += [_copy(folder, defense, attack, levels[number], f"client-{c}", draw, known) for c in range(2)]
    folder.write_rows(rows)
    return path


def _row(protocol: str, defense: str, attack: str, scores: Mapping[str, Any], client: str = "", **more: Any) -> Row:
    where = {"dataset": "orl", "model": "lenet", "protocol": protocol, "defense": defense, "attack": attack, "seed": 0}
    where |= {"client": client, "round": 5} if client else {}
    n = max(len(values) for values in scores.values())
    return Row(trial=f"{protocol}-{defense}-{attack}", where=where, scores=scores, n=n, status="ok", **more)


def _weights(folder: RunFolder, faces: NDArray[np.float64], draw: Any) -> list[Row]:
    correct = [float(value) for value in draw.random(TEST) < 0.7]
    rows = [_row("fedavg", "none", "none", {"utility": correct})]
    for number in range(CLIENTS):
        client, face = f"client-{number}", faces[number : number + 1]
        noise = draw.normal(0, 0.02, face.shape)
        images = {"original": face.astype(np.float32), "reconstruction": (face + noise).astype(np.float32)}
        rows.append(
            _row(
                "fedavg",
                "none",
                "dlm_plus",
                {"psnr": [34.0], "ssim": [0.9], "recovered": [1.0]},
                client,
                threshold=30.0,
                granted=("samples",),
                baselines={"mean_image": {"psnr": [14.0], "ssim": [0.3], "recovered": [0.0]}},
                artifacts={"images": folder.put(save(images))},
            )
        )
        wrong = [1.0] * (1 if number == 0 else 0) + [0.0] * (10 if number else 9)
        guesses = {"evenly": {"label_errors": [1.0] * 9 + [0.0]}, "commonest": {"label_errors": [1.0] * 8 + [0.0] * 2}}
        counted = {"label_errors": wrong[:10]}
        rows.append(_row("fedavg", "none", "label_counts", counted, client, threshold=30.0, baselines=guesses))
    return rows


def _people(
    folder: RunFolder, defense: str, attack: str, share: float, faces: NDArray[np.float64], draw: Any, known: str
) -> Row:
    hits = [float(at < round(share * PEOPLE)) for at in range(PEOPLE)]
    prior = np.broadcast_to(faces.mean(axis=0, keepdims=True), faces.shape)
    weight = np.where(np.asarray(hits) > 0, 0.75, 0.15)[:, None, None, None]
    rebuilt = weight * faces + (1 - weight) * prior + draw.normal(0, 0.06, faces.shape)
    images = {"original": faces, "reconstruction": rebuilt, "prior": prior}
    ssim = [round(0.35 + 0.35 * hit + 0.01 * (at % 5), 3) for at, hit in enumerate(hits)]
    blind = {"attack_accuracy": [0.0] * 18 + [1.0] * 2, "ssim": [0.35] * PEOPLE, "nearest_public": [0.0] * PEOPLE}
    return _row(
        "fedmd",
        defense,
        attack,
        {"attack_accuracy": hits, "ssim": ssim, "nearest_public": [0.0] * PEOPLE},
        "federation",
        threshold=30.0,
        granted=("target_labels",),
        baselines={
            "prior": blind,
            "other_client": {**blind, "attack_accuracy": [1.0] + [0.0] * 19},
            "noise": {**blind, "attack_accuracy": [0.0] * 20, "ssim": [0.01] * 20},
        },
        artifacts={
            "images": folder.put(save({k: np.ascontiguousarray(v, dtype=np.float32) for k, v in images.items()})),
            "facts": folder.put_json({"twins": 12, "chosen_client_right": 0.95 if attack == "pli" else 0.4}),
            "trace": folder.put_json({"steps": [1, 2, 3, 4], "objective": [0.9, 0.4, 0.25, 0.2]}),
            "provenance": known,
        },
    )


def _copy(folder: RunFolder, defense: str, attack: str, level: float, client: str, draw: Any, known: str) -> Row:
    right, victim = draw.random(TEST) < level, draw.random(TEST) < 0.65
    commonest = np.arange(TEST) % 10 == 0
    said = {"attack_accuracy": right, "victim_accuracy": victim, "fidelity": draw.random(TEST) < level + 0.15}
    guess = {"attack_accuracy": commonest, "victim_accuracy": victim, "fidelity": commonest}
    return _row(
        "fedmd",
        defense,
        attack,
        {name: [float(v) for v in values] for name, values in said.items()},
        client,
        threshold=30.0,
        baselines={"commonest": {name: [float(v) for v in values] for name, values in guess.items()}},
        artifacts={
            "facts": folder.put_json(
                {
                    "upper_bound_accuracy": level + 0.04,
                    "upper_bound_round": 4,
                    "theorem_2": {"alpha": 0.0, "distance": 1.6, "lambda": None},
                }
            ),
            "trace": folder.put_json({"steps": [1, 2, 3, 4, 5], "objective": [2.0, 1.4, 1.1, 0.9, 0.8]}),
            "provenance": known,
        },
    )


def _entropies(draw: Any) -> dict[str, NDArray[np.float32]]:
    shapes = {"server on public": 1.6, "server on private": 2.2, "client on public": 1.1, "client on private": 0.15}
    top = float(np.log(40))
    return {name: np.clip(draw.gamma(4, middle / 4, 800), 0, top).astype(np.float32) for name, middle in shapes.items()}


def _provenance(defense: str, worth: float) -> dict[str, Any]:
    return {
        "versions": {"fedleak": "0.1.0", "torch": "2.13.0"},
        "device": "cpu",
        "rounds": 5,
        "split": {"hash": "ab" * 32, "dataset": "orl", "parameters": {"clients": CLIENTS, "partition": "by_class"}},
        "guarantee": {"kind": "empirical", "statement": "none: nothing is proved" if defense != "none" else "nothing"},
        "utility_by_round": [0.1, worth],
    }
