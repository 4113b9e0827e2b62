"""What holds for every registered attack, defense, protocol, model and metric."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import table
import torch

from fedleak import Examples, attack, simulate
from fedleak.attacks import ATTACKS
from fedleak.audit.deadline import TimedOutError, within
from fedleak.audit.registry import registry
from fedleak.audit.work import attack_transcript
from fedleak.components import configure, parameters, resolved
from fedleak.data import DATASETS
from fedleak.defenses import DEFENSES, Context, Plan, chain
from fedleak.defenses.payloads import sent_numbers
from fedleak.errors import KnowledgeError
from fedleak.federation import PROTOCOLS
from fedleak.learning.functional import Network
from fedleak.metrics import METRICS
from fedleak.models import MODELS, build_model
from fedleak.seeding import Seeds
from fedleak.types import (
    Attack,
    ClassReconstruction,
    Gradients,
    ModelSpec,
    Predictions,
    PublicSet,
    Recording,
    RecoveredClasses,
    RecoveredCounts,
    RecoveredImages,
    StolenModel,
    Weights,
    silent,
)

KINDS = {"attacks": ATTACKS, "defenses": DEFENSES, "protocols": PROTOCOLS, "models": MODELS}
ROWS = {
    "attacks": table.ATTACKS,
    "defenses": table.DEFENSES,
    "protocols": table.PROTOCOLS,
    "models": table.MODELS,
}
EVERY = [(kind, name) for kind, rows in ROWS.items() for name in rows]
READ_BY = [
    (name, protocol) for protocol in PROTOCOLS for name in ATTACKS if PROTOCOLS[protocol].sends in ATTACKS[name].reads
]
"""Every attack with every protocol that sends what it reads."""


def made(kind: str, name: str) -> Any:
    return configure(KINDS[kind][name], ROWS[kind][name])


def federation(protocol: str = "fedavg", seed: int = 0, **settings: Any) -> Recording:
    rng = torch.Generator().manual_seed(seed)
    clients = {
        f"client-{k}": Examples(torch.rand(4, 1, 8, 8, generator=rng), torch.tensor([0, 1, 2, 1])) for k in range(2)
    }
    test = Examples(torch.rand(5, 1, 8, 8, generator=rng), torch.tensor([0, 1, 2, 0, 1]))
    public = PublicSet(
        torch.rand(6, 1, 8, 8, generator=rng), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 0, 0, 1, 1, 1])
    )
    given = {**table.PROTOCOLS[protocol], **settings}
    return simulate(clients, test, model="mlp", protocol=protocol, seed=seed, public=public, device="cpu", **given)


@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_table_has_a_row_for_each(kind: str) -> None:
    assert set(KINDS[kind]) == set(ROWS[kind])
    assert set(KINDS[kind]) <= set(registry(kind))


def test_the_contract_table_names_every_metric_and_data_set() -> None:
    assert set(METRICS) == set(table.METRICS)
    assert set(DATASETS) == set(table.DATASETS)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_parameters_survive_a_round_trip_through_json(kind: str, name: str) -> None:
    part = made(kind, name)
    again = configure(KINDS[kind][name], json.loads(json.dumps(resolved(part))))
    assert again == part
    assert set(parameters(KINDS[kind][name])) == set(resolved(part))


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_unknown_parameters_are_refused_and_values_are_frozen(kind: str, name: str) -> None:
    with pytest.raises(Exception, match="nonsense"):
        configure(KINDS[kind][name], {**ROWS[kind][name], "nonsense": 1})
    part = made(kind, name)
    for field in resolved(part):
        with pytest.raises(Exception, match=r"frozen|cannot assign"):
            setattr(part, field, None)


@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_what_users_read_cites_papers_by_their_titles(kind: str, name: str) -> None:
    part = KINDS[kind][name]
    assert ".txt" not in getattr(part, "paper", "") + (inspect.getdoc(part) or "")


@pytest.mark.parametrize(("kind", "name"), [e for e in EVERY if e[0] != "models"])
def test_docstrings_say_what_is_seen_needed_and_guaranteed(kind: str, name: str) -> None:
    text = inspect.getdoc(KINDS[kind][name]) or ""
    for section in ("Sees:", "Needs:", "Guarantees:"):
        assert section in text, f"{kind} {name} lacks {section}"
    assert isinstance(KINDS[kind][name].revision, int)


# --- attacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_declares_itself(name: str) -> None:
    assert isinstance(made("attacks", name), Attack)
    assert ATTACKS[name].paper
    # Its row of the table says whether it iterates; what is read off in one go (label_counts) does not.
    iterates = {"steps", "restarts"}
    assert iterates & set(table.ATTACKS[name]) == iterates & set(parameters(ATTACKS[name]))
    assert iterates & set(parameters(ATTACKS[name])) in (set(), iterates)
    assert "preset" in parameters(ATTACKS[name])
    assert getattr(ATTACKS[name], "PRESETS", None), "presets are named"
    shown = {key: entry["default"] for key, entry in parameters(ATTACKS[name]).items() if "default" in entry}
    assert shown == resolved(ATTACKS[name]()), "what `fedleak show` says is what runs where nothing is set"


def readable(name: str) -> str:
    """A protocol whose messages the attack reads."""
    order = ("fedavg", "fedsgd", "fedmd")
    return next(protocol for protocol in order if PROTOCOLS[protocol].sends in ATTACKS[name].reads)


def numbers(victim: Any) -> list[torch.Tensor]:
    """What an attack says about one victim, whatever kind of finding it is."""
    match victim:
        case RecoveredCounts(counts=counts):
            return [counts]
        case StolenModel(weights=weights):
            return list(weights.tensors.values())
    return [victim.inputs]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(numbers(one), numbers(other), strict=True))


@pytest.mark.parametrize(("name", "protocol"), READ_BY)
def test_an_attack_finds_something_for_every_victim_and_the_same_every_time(name: str, protocol: str) -> None:
    seen = federation(protocol).transcript
    first, second = (attack(seen, name, device="cpu", **table.ATTACKS[name]) for _ in range(2))
    assert isinstance(first, ATTACKS[name].yields)
    senders = [m.sender for m in seen.round(1).received]
    # Pictures of classes may be of the whole federation: whoever holds the class.
    allowed = [senders, ["federation"]] if isinstance(first, ClassReconstruction) else [senders]
    assert [v.sender for v in first.victims] in allowed
    for mine, again in zip(first.victims, second.victims, strict=True):
        assert mine.status == "ok"
        assert same(mine, again)
        if isinstance(mine, RecoveredImages | RecoveredClasses):
            assert mine.inputs.shape[1:] == seen.setup.input_shape
            assert mine.labels is None or mine.labels.dtype == torch.int64
        if isinstance(mine, RecoveredImages):
            assert len(mine.inputs) == 1
    assert first.trace.objective.shape in ((len(first.victims), len(first.trace.steps)), (0, 0))
    other = attack(seen, name, device="cpu", seed=5, **table.ATTACKS[name])
    # What iterates begins somewhere else; what is read off in one go is the same whatever is drawn.
    assert same(other.victims[0], first.victims[0]) is ("steps" not in table.ATTACKS[name])


def needed(name: str) -> frozenset[str]:
    """What an attack must be told besides what crossed the wire."""
    part = ATTACKS[name]
    return part.needs | (part.needs_from_weights if Weights in part.reads else frozenset())


@pytest.mark.parametrize("name", [name for name in ATTACKS if needed(name)])
def test_an_attack_without_what_it_needs_says_what_is_missing(name: str) -> None:
    seen = federation(readable(name), disclose=()).transcript
    needs = needed(name)
    with pytest.raises(KnowledgeError) as caught:
        attack(seen, name, device="cpu", **table.ATTACKS[name])
    assert all(need in str(caught.value) for need in needs)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_gives_the_same_when_told_no_more_than_it_needs(name: str) -> None:
    """What it does not declare, it does not use."""
    seen = federation(readable(name)).transcript
    needs = needed(name)
    part = made("attacks", name)
    told, granted = attack_transcript(part, name, seen, 0, "cpu")
    everything = part(seen, rng=Seeds(0).generator("attack", getattr(part, "draws_as", name)))
    assert set(granted) == needs | getattr(part, "uses", frozenset())
    assert same(told.victims[0], everything.victims[0])


@pytest.mark.parametrize("name", [name for name in ATTACKS if "steps" in table.ATTACKS[name]])
def test_an_attack_that_iterates_tells_its_progress_and_can_be_stopped_by_it(name: str) -> None:
    """`time_limit` of a specification rests on it."""
    with pytest.raises(TimedOutError, match=r"was over at step \d+ of \d+"):
        attack_transcript(
            made("attacks", name), name, federation(readable(name)).transcript, 0, "cpu", within(0.0, silent)
        )


# --- defenses -----------------------------------------------------------------------------------------------------


ON_MESSAGES = [
    (name, payload_type)
    for payload_type in (Gradients, Weights, Predictions)
    for name in DEFENSES
    if (defense := made("defenses", name)).stage == "message"
    and payload_type in getattr(defense, "reads", (payload_type,))
]
"""Every defense of messages with every kind of message that it acts on."""


@pytest.mark.parametrize(("name", "payload_type"), ON_MESSAGES)
def test_a_message_defense_is_pure_and_draws_from_its_generator(name: str, payload_type: type) -> None:
    defense = made("defenses", name)
    tensors = {"w": torch.linspace(-1, 1, 12).reshape(3, 4), "b": torch.ones(3)}
    module = build_model(ModelSpec("mlp", {"hidden": 3}), (1, 2, 2), 4, torch.Generator().manual_seed(0))
    shares = Predictions(tensors["w"].softmax(-1), "probabilities", torch.arange(3))
    sent: Any = shares if payload_type is Predictions else payload_type(tensors)
    before = {k: v.clone() for k, v in sent_numbers(sent).items()}
    context = Context(
        stage="message",
        broadcast=Weights({k: torch.zeros_like(v) for k, v in before.items()}),
        network=Network(module),
        previous=Network(module).initial(),
        public=PublicSet(torch.rand(3, 1, 2, 2, generator=torch.Generator().manual_seed(1))),
    )
    out = [defense.apply(sent, context, torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert type(out[0]) is payload_type
    first, same, other = (sent_numbers(one) for one in out)
    assert list(first) == list(before)
    for key, value in before.items():
        assert torch.equal(sent_numbers(sent)[key], value), "the value it was given was changed in place"
        assert torch.equal(first[key], same[key])
        assert first[key].shape == value.shape
    noisy = name in ("gaussian", "laplace", "directed")
    large = next(iter(before))
    assert torch.equal(first[large], other[large]) is not noisy


@pytest.mark.parametrize("name", DEFENSES)
def test_a_guarantee_is_a_proof_or_says_that_it_is_none(name: str) -> None:
    promised = chain(made("defenses", name)).guarantee(Plan(rounds=3, dimension=10))
    assert promised.statement
    assert (promised.kind == "dp") == (promised.epsilon is not None)


# --- protocols and models -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_leaves_a_transcript_and_apart_from_it_the_truth(name: str) -> None:
    recording, again = federation(name), federation(name)
    assert len(recording.transcript.rounds) >= 1
    for seen, same in zip(recording.transcript.rounds, again.transcript.rounds, strict=True):
        for mine, theirs in zip(seen.received, same.received, strict=True):
            assert type(mine.payload) is PROTOCOLS[name].sends
            assert sent_numbers(mine.payload)
            for key, value in sent_numbers(mine.payload).items():
                assert torch.equal(value, sent_numbers(theirs.payload)[key])
            assert len(recording.truth.behind(seen.index, mine.sender)) == mine.disclosed["samples"]
    assert len(recording.truth.correct) == len(recording.truth.test)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 12)])
def test_a_model_takes_any_picture_and_draws_from_the_generator(name: str, shape: tuple[int, ...]) -> None:
    spec = ModelSpec(name, table.MODELS[name])
    state = torch.random.get_rng_state()
    one, same, other = (build_model(spec, shape, 7, torch.Generator().manual_seed(s)) for s in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was left changed"
    assert one(torch.rand(2, *shape)).shape == (2, 7)
    pairs = list(zip(one.parameters(), same.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not any(torch.equal(a, c) for a, _, c in pairs if a.numel() > 3)
