"""Defenses of every stage as a client mod: on the message, inside the client's training, on its part of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedleak[flower]'")

from flower_parts import LocalGrid, first, plain, private, usual
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F

import fedleak
from fedleak.defenses import DPSGD, CrossDomain, Directed, Gaussian, OneShot, Prune, TopK
from fedleak.defenses import Context as Known
from fedleak.errors import RefusedError
from fedleak.integrations.flower import defend, exchange, read_request, record, reply_predictions, train_defended
from fedleak.integrations.flower.logits import consensus
from fedleak.learning.functional import Network
from fedleak.seeding import Seeds
from fedleak.types import Normalisation, Predictions, PublicSet

PIXELS = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
PUBLIC = PublicSet(PIXELS, domains=torch.tensor([0, 1, 1, 0, 1, 0]))


# --- the client's own model ---------------------------------------------------------------------------------------


def own_model(context: Context) -> nn.Module:
    torch.manual_seed(int(context.node_config["partition-id"]))
    module = plain()
    if "model" in context.state:
        module.load_state_dict(context.state["model"].to_torch_state_dict())
    return module


def learning(*defenses: Any, models: list[Any] | None = None, told: list[Any] | None = None, **given: Any) -> ClientApp:
    """FedMD clients that take one step a round and keep their model; `models` collects (client, before, after)."""
    app = ClientApp(mods=[defend(*defenses, seed=4, **given)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number, asked, module = int(context.node_config["partition-id"]), read_request(message), own_model(context)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        inputs, labels = private(number)
        F.cross_entropy(module(inputs), labels).backward()
        torch.optim.SGD(module.parameters(), lr=1.0).step()
        context.state["model"] = ArrayRecord(module.state_dict())
        if models is not None:
            models.append((number, before, {n: v.clone() for n, v in module.state_dict().items()}))
        if told is not None:
            told.append((asked.round, number, asked.consensus, asked.index.tolist()))
        with torch.no_grad():
            return reply_predictions(message, module(PIXELS[asked.index]), samples=len(inputs))

    return app


def run(app: ClientApp, out: Path, rounds: int = 2, grid: Any = None, **more: Any) -> Predictions:
    given = {"public": PUBLIC, "classes": 3, "rounds": rounds, "out": out, **more}
    return exchange(grid or LocalGrid(app), **given)


def sent(out: Path, index: int) -> list[Predictions]:
    return [m.payload for m in fedleak.load_transcript(out).round(index).received]  # type: ignore[misc]


def test_directed_judges_with_the_model_behind_the_last_message(tmp_path: Path) -> None:
    """In round 1 with the model before any work; later with the one that made the predictions of the round before."""
    models: list[Any] = []
    defense, scaled = Directed(gamma=4.0, scope="example"), Normalisation((0.5,), (0.2,))
    app = learning(defense, models=models, model=own_model, public=PUBLIC, normalisation=(0.5, 0.2))
    run(app, tmp_path / "r", rounds=3)
    last: dict[int, Any] = {}
    moved_elsewhere = 0
    for at, (number, before, after) in enumerate(models):
        index = at // 2 + 1
        if number in last:
            assert all(torch.equal(last[number][name], value) for name, value in before.items())
        last[number] = after
        module = plain().eval()
        module.load_state_dict(after)
        with torch.no_grad():
            honest = Predictions(module(PIXELS), "logits", torch.arange(6))
        address = ("flower", "predictions", "round", index, "client", number, "use", index - 1)
        by_hand = []
        for held in (before, after):
            known = Known("message", network=Network(module), previous=held, public=PUBLIC, normalisation=scaled)
            by_hand.append(defense.apply(honest, known, Seeds(4).generator(*address)).values)
        got = sent(tmp_path / "r", index)[number].values
        assert torch.equal(got, by_hand[0])
        assert ((got - honest.values).abs() > 0).sum(dim=1).tolist() == [1] * 6, "one class of each example is noised"
        moved_elsewhere += not torch.equal(*by_hand)
    assert moved_elsewhere, "the model after the round would have chosen otherwise, so the test can tell them apart"


def test_directed_composes_and_leaves_the_clients_randomness_alone(tmp_path: Path) -> None:
    both = (Directed(gamma=0.5), TopK(k=2))
    run(learning(*both, model=own_model, public=PUBLIC), tmp_path / "r", rounds=1)
    for one in sent(tmp_path / "r", 1):
        assert ((one.values - one.values.min(dim=1, keepdim=True).values) > 0).sum(dim=1).tolist() == [2] * 6
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)

    app = ClientApp(mods=[defend(Directed(gamma=0.5), seed=1, model=own_model, public=PUBLIC)])
    drawn: list[torch.Tensor] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        drawn.append(torch.rand(3))
        return reply_predictions(message, torch.zeros(6, 3), samples=1)

    run(app, tmp_path / "s", rounds=1, grid=LocalGrid(app, nodes=1), clients=1)
    assert torch.equal(drawn[0], expected)


def test_directed_without_the_model_or_the_public_set_is_refused_when_the_app_is_made(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"directed\(gamma=0\.1\).*uses network and public.*model=own_model"):
        defend(Directed(gamma=0.1))
    with pytest.raises(RefusedError, match=r"uses public, .*public=PublicSet"):
        defend(Directed(gamma=0.1), model=own_model)
    few = PublicSet(PIXELS[:4])
    with pytest.raises(RefusedError, match="has 4 examples, and the server asks about number 5"):
        run(learning(Directed(gamma=0.1), model=own_model, public=few), tmp_path / "few")
    state = learning(Directed(gamma=0.1), model=lambda context: own_model(context).state_dict(), public=PUBLIC)
    with pytest.raises(RefusedError, match=r"must return the client's torch\.nn\.Module"):
        run(state, tmp_path / "state")


def test_directed_on_weights_is_refused(tmp_path: Path) -> None:
    mod = defend(Directed(gamma=0.1), model=lambda context: plain(), public=PUBLIC)
    with pytest.raises(RefusedError, match="acts on predictions, and this protocol sends weights"):
        weights(tmp_path / "r", mod, lambda module, inputs, labels: None)


# --- the client's part of the plan --------------------------------------------------------------------------------


def test_one_shot_answers_once_and_goes_on_learning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    last = run(learning(OneShot(), Gaussian(sigma=0.1), told=told), tmp_path / "r", rounds=3)
    seen = fedleak.load_transcript(tmp_path / "r")
    assert [len(r.received) for r in seen.rounds] == [2, 0, 0]
    agreed = consensus(sent(tmp_path / "r", 1)).values
    assert torch.equal(last.values, agreed)
    heard = {(r, n): None if c is None else torch.equal(c.values, agreed) for r, n, c, _ in told}
    assert heard == {(r, n): None if r == 1 else True for r in (1, 2, 3) for n in (0, 1)}
    said = [r.getMessage() for r in caplog.records if r.name == "fedleak.flower" and r.levelname == "WARNING"]
    assert len(said) == 2
    assert "round 2: node-102 left out: replied with error" in said[0]
    assert "defend(one_shot): this client has sent 1 of 1 messages" in said[0]


def test_one_shot_counts_what_was_sent_and_not_what_failed(tmp_path: Path) -> None:
    app = ClientApp(mods=[defend(OneShot(), seed=0)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = read_request(message)
        values = torch.zeros(6, 3) if asked.round > 1 else torch.zeros(2, 3)
        return reply_predictions(message, values, samples=1)

    class Forgiving(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
            try:
                return super().send_and_receive(messages)
            except RefusedError:
                return []

    run(app, tmp_path / "r", rounds=3, grid=Forgiving(app))
    assert [len(r.received) for r in fedleak.load_transcript(tmp_path / "r").rounds] == [0, 2, 0]


def test_cross_domain_answers_about_foreign_examples_only(tmp_path: Path) -> None:
    told: list[Any] = []
    run(learning(CrossDomain(), told=told, public=PUBLIC), tmp_path / "r", rounds=1)
    assert [index for _, _, _, index in told] == [[1, 2, 4], [1, 2, 4]], "and does not even predict on the others"
    assert [one.index.tolist() for one in sent(tmp_path / "r", 1)] == [[1, 2, 4], [1, 2, 4]]


def test_a_consensus_is_the_mean_of_those_who_answered() -> None:
    """By hand: example 1 has two answers, 0 and 2 have one each, 3 has none."""
    one = Predictions(torch.tensor([[2.0, 0.0], [4.0, 0.0]]), "logits", torch.tensor([0, 1]))
    two = Predictions(torch.tensor([[0.0, 6.0], [1.0, 1.0]]), "logits", torch.tensor([1, 2]))
    agreed = consensus([one, two])
    assert agreed.index.tolist() == [0, 1, 2]
    assert agreed.values.tolist() == [[2.0, 0.0], [2.0, 3.0], [1.0, 1.0]]


def test_cross_domain_needs_the_domains_and_something_to_answer_about(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"cross_domain.*uses public.*public=PublicSet"):
        defend(CrossDomain())
    with pytest.raises(RefusedError, match="does not say which of its 6 images are of the private domain"):
        defend(CrossDomain(), public=PublicSet(PIXELS))
    app = learning(CrossDomain(), public=PublicSet(PIXELS, domains=torch.tensor([0, 0, 0, 0, 0, 1])))
    short = PublicSet(PIXELS[:5])
    with pytest.raises(RefusedError, match="none of the 5 public examples asked about"):
        run(app, tmp_path / "r", public=short)


@pytest.mark.parametrize("defense", [OneShot(), CrossDomain()])
def test_a_plan_of_predictions_is_refused_for_weights(defense: Any, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"is about predictions .* the reply carries weights \('arrays'\)"):
        weights(tmp_path / "r", defend(defense, public=PUBLIC), lambda module, inputs, labels: None)


# --- inside the training ------------------------------------------------------------------------------------------


def weights(out: Path, mod: Any, work: Any, rounds: int = 1) -> Any:
    """FedAvg whose clients do `work(module, inputs, labels)` to the broadcast network."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module = plain()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        inputs, labels = private(int(context.node_config["partition-id"]))
        work(module, inputs, labels)
        return Message(usual(module, len(inputs)), reply_to=message)

    strategy = record(FedAvg(fraction_evaluate=0.0), out=out, model=plain)
    strategy.start(LocalGrid(app), first(plain), num_rounds=rounds)
    return fedleak.load_transcript(out)


def one_step(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    train_defended(module, inputs, labels, epochs=1, lr=0.5)


def gradients_by_hand(inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    """One flat gradient per example, by plain autograd."""
    found = []
    for x, y in zip(inputs, labels, strict=True):
        module = plain()
        module.load_state_dict(first(plain).to_torch_state_dict())
        F.cross_entropy(module(x[None]), y[None]).backward()
        found.append(torch.cat([p.grad.flatten() for p in module.parameters()]))  # type: ignore[union-attr]
    return found


def updates(seen: Any, index: int = 1) -> list[torch.Tensor]:
    start = seen.round(index).broadcast.tensors
    return [
        torch.cat([(m.payload.tensors[name] - start[name]).flatten() for name in start])
        for m in seen.round(index).received
    ]


def test_dp_sgd_sends_the_mean_of_clipped_gradients(tmp_path: Path) -> None:
    mod = defend(DPSGD(noise_multiplier=0.0, max_grad_norm=0.3), seed=0)
    for client, update in enumerate(updates(weights(tmp_path / "r", mod, one_step))):
        each = gradients_by_hand(*private(client))
        clipped = [g * min(1.0, 0.3 / float(g.norm())) for g in each]
        assert any(float(g.norm()) > 0.3 for g in each)
        assert torch.allclose(update, -0.5 * torch.stack(clipped).mean(dim=0), atol=1e-6)


def test_gradient_and_message_defenses_compose_and_repeat_by_seed(tmp_path: Path) -> None:
    composed = (DPSGD(noise_multiplier=1.0, max_grad_norm=1.0), Prune(fraction=0.5), Gaussian(sigma=0.1))
    runs = [updates(weights(tmp_path / str(n), defend(*composed, seed=s), one_step)) for n, s in enumerate((3, 3, 4))]
    assert all(map(torch.equal, runs[0], runs[1]))
    assert not torch.equal(runs[0][0], runs[2][0])
    pruned = updates(weights(tmp_path / "p", defend(Prune(fraction=1.0), Gaussian(sigma=0.1), seed=1), one_step))
    assert float(pruned[0].std()) == pytest.approx(0.1, rel=0.2), "nothing but the noise of the message is left"


def test_without_such_a_defense_it_is_plain_sgd(tmp_path: Path) -> None:
    update = updates(weights(tmp_path / "r", defend(), one_step))[0]
    assert torch.allclose(update, -0.5 * torch.stack(gradients_by_hand(*private(0))).mean(dim=0), atol=1e-6)


def step(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    module.zero_grad()
    F.cross_entropy(module(inputs), labels).backward()
    torch.optim.SGD(module.parameters(), lr=0.5).step()


@pytest.mark.parametrize(
    ("works", "reason"),
    [
        ((step,), "it was not called"),
        ((step, one_step), "steps came before it that no defense saw"),
        ((one_step, step, one_step), "steps came before it"),
        ((one_step, step), "array '1.weight' of the reply is not what train_defended left"),
    ],
)
def test_training_that_no_defense_saw_is_not_sent(works: Any, reason: str, tmp_path: Path) -> None:
    def work(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        for one in works:
            one(module, inputs, labels)

    mod = defend(DPSGD(noise_multiplier=1.0, max_grad_norm=1.0), seed=0)
    with pytest.raises(RefusedError, match=reason):
        weights(tmp_path / "r", mod, work)
    both = weights(tmp_path / "both", mod, lambda *given: (one_step(*given), one_step(*given)))
    assert [len(r.received) for r in both.rounds] == [2], "two defended calls in a row are one training"


def test_gradient_defenses_do_not_cover_what_is_learned_from_predictions(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"dp_sgd.*asks for predictions"):
        run(learning(DPSGD(noise_multiplier=1.0, max_grad_norm=1.0)), tmp_path / "r")
