"""A transcript comes back bit for bit, lazily, and without a word of Python in it."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedleak.errors import RefusedError, TranscriptError
from fedleak.files import disk_is_full
from fedleak.transcript import TranscriptWriter, load_transcript, save_transcript
from fedleak.types import (
    Gradients,
    Message,
    ModelSpec,
    Normalisation,
    Predictions,
    PublicSet,
    Round,
    Setup,
    Transcript,
    Weights,
)


def bits(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""


def same(a: object, b: object) -> bool:
    """Equal to the last bit, NaNs included."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)  # type: ignore[arg-type,index]
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))  # type: ignore[arg-type]
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    return a == b


SETUP = Setup(
    model=ModelSpec("lenet", {"channels": 12}),
    input_shape=(1, 8, 8),
    classes=4,
    normalisation=Normalisation((0.5,), (0.25,)),
    disclosed={"lr": 0.01, "epochs": 5},
)

names = st.text(min_size=1, max_size=12)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(dtypes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    width = torch.empty(0, dtype=dtype).element_size()
    # Any bit pattern at all: NaN payloads, infinities and denormals must survive.
    raw = torch.randint(0, 256, (math.prod(shape) * width,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


named = st.dictionaries(names, tensors(), max_size=3)
weights = st.builds(Weights, named, named)
predictions = st.integers(0, 4).map(
    lambda n: Predictions(values=torch.ones(n, 3) / 3, scale="probabilities", index=torch.arange(n))
)
payloads = st.one_of(st.builds(Gradients, named), weights, predictions)
messages = st.lists(st.tuples(names, payloads), max_size=3, unique_by=lambda pair: pair[0])


@settings(max_examples=60, deadline=None)
@given(
    contents=st.lists(st.tuples(st.one_of(st.none(), weights), messages, st.one_of(st.none(), predictions)), max_size=3)
)
def test_every_payload_comes_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, contents: list) -> None:
    rounds = [
        Round(index, broadcast, tuple(Message(s, p, {"samples": 3}) for s, p in received), server)
        for index, (broadcast, received, server) in enumerate(contents, start=1)
    ]
    folder = tmp_path_factory.mktemp("transcript") / "t"
    save_transcript(Transcript(SETUP, rounds), folder)
    found = load_transcript(folder)
    assert found.setup == SETUP
    assert len(found.rounds) == len(rounds)
    for mine, theirs in zip(rounds, found.rounds, strict=True):
        assert same(mine, theirs)


def test_the_public_set_is_stored_once(tmp_path: Path) -> None:
    public = PublicSet(torch.rand(5, 1, 8, 8), torch.arange(5))
    setup = Setup(ModelSpec("mlp"), (1, 8, 8), 5, public=public)
    save_transcript(Transcript(setup, [Round(1, None, ()), Round(2, None, ())]), tmp_path / "t")
    found = load_transcript(tmp_path / "t").setup.public
    assert found is not None
    assert same(found, public)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == [
        "manifest.json",
        "public.safetensors",
        "round-0001.safetensors",
        "round-0002.safetensors",
    ]


def test_photographs_are_stored_as_bytes_and_come_back_exactly(tmp_path: Path) -> None:
    photographs = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8).float() / 255
    for name, pixels, size in (("bytes", photographs, 1), ("floats", photographs + 1e-4, 4)):
        public = PublicSet(pixels, torch.arange(4), torch.tensor([0, 0, 1, 1]))
        save_transcript(Transcript(Setup(ModelSpec("mlp"), (1, 8, 8), 5, public=public), []), tmp_path / name)
        found = load_transcript(tmp_path / name).setup.public
        assert found is not None
        assert same(found, public)
        stored = json.loads((tmp_path / name / "manifest.json").read_text())["public"]["bytes"]
        assert 256 * size <= stored < 256 * size + 600


def test_a_round_is_read_only_when_it_is_asked_for(tmp_path: Path) -> None:
    rounds = [Round(i, Weights({"w": torch.full((2,), float(i))}), ()) for i in (1, 2)]
    save_transcript(Transcript(SETUP, rounds), tmp_path / "t")
    (tmp_path / "t" / "round-0002.safetensors").unlink()
    found = load_transcript(tmp_path / "t")
    assert found.rounds[0].broadcast.tensors["w"].tolist() == [1.0, 1.0]  # type: ignore[union-attr]
    with pytest.raises(TranscriptError, match=r"round-0002\.safetensors: missing"):
        found.rounds[1]


def test_finished_rounds_are_readable_while_the_recording_goes_on(tmp_path: Path) -> None:
    writer = TranscriptWriter(tmp_path / "t", SETUP)
    assert len(load_transcript(tmp_path / "t").rounds) == 0
    writer.append(Round(1, None, (Message("a", Gradients({"w": torch.ones(2)})),)))
    assert [m.sender for m in load_transcript(tmp_path / "t").rounds[0].received] == ["a"]
    writer.append(Round(3, None, ()))  # a missed round is a fact, not an error
    assert [r.index for r in load_transcript(tmp_path / "t").rounds] == [1, 3]
    with pytest.raises(TranscriptError, match="there is one already"):
        TranscriptWriter(tmp_path / "t", SETUP)


def test_tied_and_strided_tensors_are_stored_by_value(tmp_path: Path) -> None:
    shared = torch.arange(12.0).reshape(3, 4)
    message = Message("a", Weights({"one": shared, "two": shared, "turned": shared.T, "cut": shared[:, 1:3]}))
    save_transcript(Transcript(SETUP, [Round(1, None, (message,))]), tmp_path / "t")
    found = load_transcript(tmp_path / "t").rounds[0].received[0].payload
    assert isinstance(found, Weights)
    assert torch.equal(found.tensors["turned"], shared.T)
    assert torch.equal(found.tensors["cut"], shared[:, 1:3])


def test_granting_hides_what_an_attack_does_not_need(tmp_path: Path) -> None:
    message = Message("a", Gradients({"w": torch.ones(1)}), {"samples": 4, "label_counts": [4, 0]})
    told = Transcript(SETUP, [Round(1, None, (message,))]).granting(frozenset({"samples", "lr"}))
    assert told.setup.disclosed == {"lr": 0.01}
    assert told.rounds[0].received[0].disclosed == {"samples": 4}
    assert told.rounds[0:1][0].received[0].disclosed == {"samples": 4}


def test_a_round_that_contradicts_itself_is_refused_and_what_was_written_stays(tmp_path: Path) -> None:
    whole = Message("a", Predictions(torch.rand(3, 4), "logits", torch.arange(3)))
    short = Message("b", Predictions(torch.rand(2, 4), "logits", torch.arange(3)))
    writer = TranscriptWriter(tmp_path / "t", SETUP)
    writer.append(Round(1, None, (whole,)))
    for wrong, words in (
        (Round(2, None, (whole, short)), r"round 2: predictions of shape \[2, 4\] do not fit an index of shape \[3\]"),
        (Round(2, None, (whole, whole)), "round 2: two messages of one round have the same sender"),
    ):
        with pytest.raises(TranscriptError, match=words):
            writer.append(wrong)
    assert [one.index for one in load_transcript(tmp_path / "t").rounds] == [1]
    files = {"manifest.json", "round-0001.safetensors"}
    assert {one.name for one in (tmp_path / "t").iterdir() if one.name != "public.safetensors"} == files


def test_a_round_that_was_recorded_before_does_not_touch_the_record(tmp_path: Path) -> None:
    def of(index: int, value: float) -> Round:
        return Round(index, None, (Message("a", Gradients({"w": torch.full((2,), value)})),))

    writer = TranscriptWriter(tmp_path / "t", SETUP)
    for index in (1, 2):
        writer.append(of(index, float(index)))
    for index in (1, 2):
        with pytest.raises(TranscriptError, match=f"round {index}: round indices must rise.*nothing of it was written"):
            writer.append(of(index, 9.0))
    writer.append(of(3, 3.0))
    sent = [one.received[0].payload for one in load_transcript(tmp_path / "t").rounds]
    assert [payload.tensors["w"].tolist() for payload in sent] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]  # type: ignore[union-attr]


def test_a_round_that_finds_no_room_is_the_systems_error_and_the_record_goes_on(tmp_path: Path) -> None:
    """What catches a full disk catches an OSError; the library that writes the tensors has an error of its own."""

    def of(index: int, size: int) -> Round:
        return Round(index, None, (Message("a", Gradients({"w": torch.zeros(size)})),))

    writer = TranscriptWriter(tmp_path / "t", SETUP)
    writer.append(of(1, 2))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            writer.append(of(2, 2**20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert disk_is_full(caught.value)
    assert not list((tmp_path / "t").glob(".*")), "nothing half written is left"
    writer.append(of(2, 2))
    assert [one.index for one in load_transcript(tmp_path / "t").rounds] == [1, 2]


def test_a_round_is_asked_for_by_its_index_also_where_one_before_it_was_lost(tmp_path: Path) -> None:
    sent = Message("a", Gradients({"w": torch.zeros(2)}))
    kept = Transcript(SETUP, tuple(Round(index, None, (sent,)) for index in (2, 3, 5)))
    save_transcript(kept, tmp_path / "t")
    stored = load_transcript(tmp_path / "t")
    for transcript in (kept, stored, stored.granting(frozenset()), kept.mapped(lambda round_: round_)):
        assert [transcript.round(index).index for index in (2, 3, 5, -1, -3)] == [2, 3, 5, 5, 2]
        for index in (0, 1, 4, 6, -4):
            with pytest.raises(RefusedError, match=f"round={index}: the transcript holds rounds 2, 3, 5; ask for one"):
                transcript.round(index)
    for file in (tmp_path / "t").glob("round-*"):
        file.unlink()
    assert load_transcript(tmp_path / "t").granting(frozenset()).place(5) == 2, "nothing is read to find a round"
