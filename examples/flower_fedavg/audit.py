"""Run the app as a real deployment, undefended and defended, attack what the server saw, and judge it.

python examples/flower_fedavg/audit.py [--json]
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import fedleak
from fedleak.integrations.flower import Deployment, Node
from fedleak.types import Examples, Truth

HERE = Path(__file__).resolve().parent
CLIENTS, THRESHOLD = 2, 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the federation")
    parser.add_argument("--steps", type=int, default=60, help="outer iterations of the attack")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for arm in ("undefended", "defended"):
        print(f"{arm}: superlink and {CLIENTS} supernodes ...", file=sys.stderr, flush=True)
        found[arm] = audit(arm == "defended", given.rounds, given.steps)
    if given.json:
        print(json.dumps(found))
        return
    for arm, result in found.items():
        print(
            f"{arm:>10}: {result['recovered']} of {result['images']} private photographs recovered, (by "
            f"somebody who saw nothing: {result['null_recovered']}), best SSIM {result['best_ssim']:.3f}, "
            f"accuracy {result['accuracy']:.1%}; recording took {result['overhead']:.2%} of the dearest round"
        )


def audit(defended: bool, rounds: int, steps: int) -> dict[str, Any]:
    """One arm: deploy, record, attack, judge."""
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app"
        shutil.copytree(HERE, app, ignore=shutil.ignore_patterns("__pycache__", "audit.py"))
        apply_readme(app, defended)
        nodes = [Node({"partition-id": number, "num-partitions": CLIENTS}) for number in range(CLIENTS)]
        with Deployment(app, nodes) as running:
            log = running.run({"num-server-rounds": rounds})
            recording = shutil.copytree(running.folder / "recording", Path(folder) / "recording")
            model = torch.load(running.folder / "final_model.pt", weights_only=True)
            transport = running.transport
        task = _task()
        transcript = fedleak.load_transcript(recording)
        finding = fedleak.attack(transcript, "dlm_plus", model=task.Net, steps=steps, restarts=1, device="cpu")
    shares = [float(share) for share in re.findall(r"fedleak: recording took .*?, (\S+) % of it", log)]
    return {**judge(task, finding, model), "transport": transport, "overhead": max(shares) / 100}


def judge(task: Any, finding: Any, model: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A photograph is recovered if some reconstruction, whoever it was taken from, shows it."""
    held = [task.load_data(number, CLIENTS)[0] for number in range(CLIENTS)]
    private = Examples(torch.cat([images for images, _ in held]), torch.cat([names for _, names in held]))
    test = Examples(*task.load_data(0, CLIENTS)[1])
    # The server does not know which node holds what: each reply is held against the photographs of all clients.
    everything = {(victim.round, victim.sender): torch.arange(len(private)) for victim in finding.victims}
    truth = Truth(private, ("anybody",) * len(private), everything, test)
    judged = fedleak.judge(finding, truth, metrics=("ssim",)).values()
    best = [max(scores) for scores in zip(*(one.scores["ssim"] for one in judged), strict=True)]
    guesses = [scores["ssim"] for one in judged for scores in one.baselines.values()]
    net = task.Net()
    net.load_state_dict(model)
    return {
        "recovered": sum(score > THRESHOLD for score in best),
        "images": len(best),
        "best_ssim": max(best),
        "null_recovered": max(sum(score > THRESHOLD for score in guess) for guess in guesses),
        "accuracy": task.accuracy(net, test.inputs, test.labels),
    }


def apply_readme(app: Path, defended: bool) -> None:
    """Change the app as the README's diffs say."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for kind, name, body in re.findall(r"```diff( defense)?\n--- (\S+)\n(.*?)```", text, flags=re.DOTALL):
        if kind and not defended:
            continue
        lines = body.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        source = (app / name).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{name}: the README's diff does not fit"
        (app / name).write_text(source.replace(old, new), encoding="utf-8")


def _task() -> Any:
    """The app's own task.py: its network and its data."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return importlib.import_module("flower_fedavg.task")


if __name__ == "__main__":
    main()
