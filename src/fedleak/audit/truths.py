"""What only the evaluator holds, on disk: truth.json and truth.safetensors, in a folder of their own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from fedleak.errors import DataError
from fedleak.files import canonical, replace_file
from fedleak.types import Examples, PublicSet, Truth

__all__ = ["load_truth", "save_truth"]

SCHEMA = 2


def save_truth(truth: Truth, folder: Path) -> None:
    """Tensors first, then the description that names them. Public images are in the transcript already: of them only
    the labels are kept, which the server may not have been told."""
    tensors = {
        "private.inputs": truth.private.inputs,
        "private.labels": truth.private.labels,
        "test.inputs": truth.test.inputs,
        "test.labels": truth.test.labels,
        "correct": truth.correct,
    }
    used = []
    for number, ((round_index, sender), positions) in enumerate(truth.used.items()):
        tensors[f"used.{number}"] = positions
        used.append({"round": round_index, "sender": sender})
    predicted = []
    for number, ((round_index, sender), classes) in enumerate(truth.predicted.items()):
        tensors[f"predicted.{number}"] = classes
        predicted.append({"round": round_index, "sender": sender})
    for number, values in enumerate(truth.entropies.values()):
        tensors[f"entropies.{number}"] = values
    if truth.public is not None and truth.public.labels is not None:
        tensors["public.labels"] = truth.public.labels
    content = save_tensors({key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()})
    replace_file(folder / "truth.safetensors", content)
    described = {
        "schema": SCHEMA,
        "owners": list(truth.owners),
        "used": used,
        "predicted": predicted,
        "entropies": list(truth.entropies),
        "twins": truth.twins,
        "utility": [value if math.isfinite(value) else None for value in truth.utility],
    }
    replace_file(folder / "truth.json", canonical(described))


def load_truth(folder: Path, public: PublicSet | None = None) -> Truth:
    """Read it back; one DataError for anything that is missing or damaged. `public` is the transcript's public set."""
    try:
        described = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
        if described["schema"] != SCHEMA:
            raise DataError(f"truth={folder}: schema={described['schema']}, this fedleak reads {SCHEMA}")
        tensors = load_tensors((folder / "truth.safetensors").read_bytes())
        private = Examples(tensors["private.inputs"], tensors["private.labels"])
        used = {
            (int(entry["round"]), str(entry["sender"])): tensors[f"used.{number}"]
            for number, entry in enumerate(described["used"])
        }
        if any(len(at) and not 0 <= int(at.min()) <= int(at.max()) < len(private) for at in used.values()):
            raise DataError(f"truth={folder}: points to examples that are not there; the folder is damaged")
        return Truth(
            private=private,
            owners=tuple(described["owners"]),
            used=used,
            test=Examples(tensors["test.inputs"], tensors["test.labels"]),
            utility=tuple(math.nan if value is None else float(value) for value in described["utility"]),
            correct=tensors["correct"].to(torch.float32),
            predicted={
                (int(entry["round"]), str(entry["sender"])): tensors[f"predicted.{number}"]
                for number, entry in enumerate(described["predicted"])
            },
            public=None if public is None else replace(public, labels=tensors.get("public.labels", public.labels)),
            twins=int(described["twins"]),
            entropies={str(name): tensors[f"entropies.{number}"] for number, name in enumerate(described["entropies"])},
        )
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise DataError(
            f"truth={folder}: {Path(str(problem.filename)).name} is missing; "
            "give the folder that holds truth.json and truth.safetensors (truths/<hash> of a run)"
        ) from None
    except (ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise DataError(f"truth={folder}: not readable ({problem}); the folder is damaged") from None
