"""Damaged, truncated, oversized, path-escaping, wrong-shape and newer transcripts: one clear error each."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedleak.errors import TranscriptError
from fedleak.transcript import load_transcript, save_transcript
from fedleak.transcript.manifest import PayloadEntry, TensorEntry
from fedleak.types import Message, ModelSpec, PublicSet, Round, Setup, Transcript, Weights


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "t"
    setup = Setup(ModelSpec("mlp"), (1, 4, 4), 3, public=PublicSet(torch.rand(2, 1, 4, 4)), disclosed={"lr": 0.1})
    weights = Weights({"w": torch.rand(3, 4), "b": torch.rand(3)})
    rounds = [Round(i, weights, (Message("a", weights, {"samples": 1}), Message("b", weights))) for i in (1, 2)]
    save_transcript(Transcript(setup, rounds), folder)
    return folder


def read_all(folder: Path) -> None:
    for seen in load_transcript(folder).rounds:
        assert seen.received


def copy(good: Path, target: Path) -> Path:
    shutil.copytree(good, target / "t")
    return target / "t"


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads((folder / "manifest.json").read_text())
    change(found)
    (folder / "manifest.json").write_text(json.dumps(found))


def at(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for step in path[:-1]:
            found = found[step]
        del found[path[-1]]

    return change


TENSOR = ("rounds", 0, "broadcast", "tensors", 0)

BROKEN_MANIFESTS = {
    "newer schema": (at("schema", value=2), "schema=2.*newer fedleak"),
    "no schema": (drop("schema"), "schema=None"),
    "schema is a word": (at("schema", value="1"), "schema='1'"),
    "schema is true": (at("schema", value=True), "schema=True"),
    "path escapes upward": (at("rounds", 0, "file", value="../../secret.safetensors"), "rounds.0.file"),
    "absolute path": (at("rounds", 0, "file", value="/etc/passwd"), "rounds.0.file"),
    "path with a newline": (at("rounds", 0, "file", value="round-0001.safetensors\n"), "rounds.0.file"),
    "public path escapes": (at("public", "file", value="../public.safetensors"), "public.file"),
    "oversized file": (at("rounds", 0, "bytes", value=2**60), "rounds.0.bytes"),
    "negative size": (at("rounds", 0, "bytes", value=-1), "rounds.0.bytes"),
    "wrong size": (at("rounds", 0, "bytes", value=12), "the manifest says 12"),
    "wrong hash": (at("rounds", 0, "sha256", value="0" * 64), "sha256"),
    "wrong shape": (at(*TENSOR, "shape", value=[4, 3]), r"'w' is torch.float32 \[3, 4\]"),
    "negative shape": (at(*TENSOR, "shape", value=[-1, 4]), "shape"),
    "huge shape": (at(*TENSOR, "shape", value=[10**12, 10**6]), "the manifest says"),
    "wrong dtype": (at(*TENSOR, "dtype", value="float64"), "the manifest says float64"),
    "unknown dtype": (at(*TENSOR, "dtype", value="object"), "dtype 'object'"),
    "unknown key": (at(*TENSOR, "key", value="nowhere"), "other tensors"),
    "key with a slash": (at(*TENSOR, "key", value="a/b"), "key"),
    "unknown field": (at("rounds", 0, "extra", value=1), "extra"),
    "unknown kind": (at("rounds", 0, "broadcast", "kind", value="pickle"), "kind"),
    "gradients as broadcast": (at("rounds", 0, "broadcast", "kind", value="gradients"), "not gradients"),
    "two tensors of one name": (at("rounds", 0, "broadcast", "tensors", 1, "name", value="w"), "same name"),
    "two buffers of one name": (
        lambda m: m["rounds"][0]["broadcast"].update(buffers=m["rounds"][0]["broadcast"]["tensors"][:1] * 2),
        "same name",
    ),
    "server sends weights": (
        lambda m: m["rounds"][0].update(server=m["rounds"][0]["received"][0]["payload"]),
        "damaged",
    ),
    "two of one sender": (at("rounds", 0, "received", 1, "sender", value="a"), "same sender"),
    "rounds out of order": (at("rounds", 0, "index", value=5), "must rise"),
    "rounds share a file": (at("rounds", 1, "file", value="round-0001.safetensors"), "same file"),
    "no classes": (at("setup", "classes", value=0), "setup.classes"),
    "no input shape": (drop("setup", "input_shape"), "setup.input_shape"),
    "zero std": (at("setup", "std", value=[0.0]), "normalisation"),
    "three means, one channel": (lambda m: m["setup"].update(mean=[0.1] * 3, std=[1.0] * 3), "one per channel"),
    "a list at the top": (lambda m: m.clear(), "schema=None"),
}


@pytest.mark.parametrize("name", BROKEN_MANIFESTS)
def test_a_broken_manifest_is_one_clear_error(good: Path, tmp_path: Path, name: str) -> None:
    change, message = BROKEN_MANIFESTS[name]
    folder = copy(good, tmp_path)
    edit(folder, change)
    with pytest.raises(TranscriptError, match=message):
        read_all(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": None}, "and a scale"),
        ({"tensors": [("index", "int64", [3]), ("values", "float32", [3, 4])]}, "'values' and 'index'"),
        ({"tensors": [("values", "float32", [3, 4])]}, "'values' and 'index'"),
        ({"tensors": [("values", "float32", []), ("index", "int64", [3])]}, "do not fit"),
        ({"tensors": [("values", "float32", [3, 4]), ("index", "int64", [3, 1])]}, "do not fit"),
        ({"tensors": [("values", "float32", [2, 4]), ("index", "int64", [3])]}, "do not fit"),
        ({"tensors": [("values", "float32", [3, 4]), ("index", "float32", [3])]}, "an index of float32"),
        ({"tensors": [("values", "float32", [3, 4]), ("index", "bool", [3])]}, "an index of bool"),
    ],
)
def test_predictions_that_do_not_say_of_what_are_refused(change: dict[str, Any], words: str) -> None:
    whole = {"scale": "logits", "tensors": [("values", "float32", [3, 4]), ("index", "int64", [3])]}

    def made(scale: Any, tensors: list[tuple[str, str, list[int]]]) -> PayloadEntry:
        entries = [TensorEntry(name=n, key=f"p{at}", dtype=d, shape=s) for at, (n, d, s) in enumerate(tensors)]
        return PayloadEntry(kind="predictions", tensors=entries, scale=scale)

    assert made(**whole).scale == "logits"
    with pytest.raises(ValidationError, match=words):
        made(**{**whole, **change})


def test_what_is_no_transcript_says_so(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="not a folder"):
        load_transcript(tmp_path / "nowhere")
    with pytest.raises(TranscriptError, match=r"not a transcript; give the folder .* transcripts/<hash> of a run"):
        load_transcript(tmp_path)
    for text in ("", "{", "[1, 2]", "null", '{"schema": NaN}', "[" * 100_000):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(TranscriptError):
            load_transcript(tmp_path)


def test_an_oversized_manifest_is_not_even_parsed(good: Path, tmp_path: Path) -> None:
    folder = copy(good, tmp_path)
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(TranscriptError, match="bytes, at most"):
        load_transcript(folder)


def test_a_symlink_out_of_the_folder_is_refused(good: Path, tmp_path: Path) -> None:
    folder = copy(good, tmp_path)
    moved = tmp_path / "elsewhere.safetensors"
    os.rename(folder / "round-0001.safetensors", moved)
    (folder / "round-0001.safetensors").symlink_to(moved)
    with pytest.raises(TranscriptError, match="not a plain file"):
        read_all(folder)
    os.rename(folder / "manifest.json", tmp_path / "elsewhere.json")
    (folder / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(TranscriptError, match=r"no manifest\.json"):
        load_transcript(folder)


def test_a_pickle_in_place_of_a_round_is_never_run(good: Path, tmp_path: Path) -> None:
    folder, mark = copy(good, tmp_path), tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (mark.touch, ())

    evil = pickle.dumps(Evil())
    (folder / "round-0001.safetensors").write_bytes(evil)
    import hashlib

    edit(folder, lambda m: m["rounds"][0].update(bytes=len(evil), sha256=hashlib.sha256(evil).hexdigest()))
    with pytest.raises(TranscriptError, match="not readable as safetensors"):
        read_all(folder)
    assert not mark.exists()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_damaged_byte_or_cut_is_noticed(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = copy(good, tmp_path_factory.mktemp("damaged"))
    victim = data.draw(st.sampled_from(sorted(p.name for p in folder.glob("*.safetensors"))))
    content = bytearray((folder / victim).read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:position]
    else:
        content[position] ^= data.draw(st.integers(1, 255))
    (folder / victim).write_bytes(bytes(content))
    with pytest.raises(TranscriptError):
        read_all(folder)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_damaged_manifest_never_ends_in_another_kind_of_error(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = copy(good, tmp_path_factory.mktemp("damaged"))
    content = bytearray((folder / "manifest.json").read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    (folder / "manifest.json").write_bytes(bytes(content))
    with contextlib.suppress(TranscriptError):
        read_all(folder)  # a changed digit of `lr` is still a valid transcript
