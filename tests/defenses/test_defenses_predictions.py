"""Defenses of predictions: by hand, as properties of the simplex, and what they say they prove."""

from __future__ import annotations

import math
from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedleak.defenses import (
    Clip,
    Context,
    CrossDomain,
    Defense,
    Directed,
    Gaussian,
    LabelOnly,
    Laplace,
    OneShot,
    Plan,
    ProtocolPlan,
    Round,
    Temperature,
    TopK,
    chain,
    epsilon_of,
    label,
)
from fedleak.defenses.accounting import gaussian_delta
from fedleak.defenses.predictions import FLOOR
from fedleak.errors import RefusedError
from fedleak.learning.simplex import onto_simplex, raw_probabilities
from fedleak.types import Gradients, Predictions, PublicSet

AT_MESSAGE = Context("message")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(count: int = 6, classes: int = 4, seed: int = 1) -> Predictions:
    values = torch.softmax(2 * torch.randn(count, classes, generator=rng(seed)), dim=-1)
    return Predictions(values, "probabilities", torch.arange(count))


def logits(count: int = 6, classes: int = 4, seed: int = 1) -> Predictions:
    return Predictions(2 * torch.randn(count, classes, generator=rng(seed)), "logits", torch.arange(count))


def sent(values: list[list[float]], scale: Any = "probabilities") -> Predictions:
    return Predictions(torch.tensor(values), scale, torch.arange(len(values)))


def through(defense: Defense, value: Predictions) -> Tensor:
    out = defense.apply(value, AT_MESSAGE, rng())
    assert isinstance(out, Predictions)
    assert out.scale == value.scale
    assert torch.equal(out.index, value.index)
    return out.values


# --- by hand ------------------------------------------------------------------------------------------------------


def test_rounding_by_hand() -> None:
    found = through(Round(decimals=1), sent([[0.66, 0.27, 0.07]]))
    assert found.tolist()[0] == pytest.approx([0.7, 0.3, 0.1], abs=1e-6)


def test_the_two_largest_by_hand() -> None:
    # 0.5 and 0.3 are kept: 5/8 and 3/8
    found = through(TopK(k=2), sent([[0.5, 0.1, 0.3, 0.1]]))
    assert found.tolist() == [[0.625, 0.0, 0.375, 0.0]]


def test_temperature_by_hand() -> None:
    # square roots of 0.64 and 0.36 are 0.8 and 0.6, over 1.4
    found = through(Temperature(t=2.0), sent([[0.64, 0.36, 0.0]]))
    assert found.tolist()[0] == pytest.approx([0.8 / 1.4, 0.6 / 1.4, 0.0])
    assert through(Temperature(t=4.0), sent([[8.0, -4.0]], "logits")).tolist() == [[2.0, -1.0]]


def test_the_label_alone_by_hand() -> None:
    assert through(LabelOnly(), sent([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])).tolist() == [[0, 1, 0], [1, 0, 0]]
    found = through(LabelOnly(), sent([[-1.0, 3.0]], "logits"))
    assert found.tolist()[0] == pytest.approx([math.log(FLOOR), 0.0])


def test_noisy_probabilities_are_put_back_by_hand() -> None:
    assert onto_simplex(torch.tensor([[0.9, -0.3, 0.3]])).tolist()[0] == pytest.approx([0.75, 0.0, 0.25])


# --- properties ---------------------------------------------------------------------------------------------------

ON_SIMPLEX: list[Defense] = [TopK(k=2), Temperature(t=0.5), Temperature(t=3.0), LabelOnly()]


@pytest.mark.parametrize("defense", ON_SIMPLEX, ids=label)
@given(seed=st.integers(0, 50), noise=st.sampled_from([0.0, 0.3]))
def test_probabilities_stay_probabilities_also_noisy_ones(defense: Defense, seed: int, noise: float) -> None:
    given_ = Gaussian(sigma=noise).apply(shares(seed=seed), AT_MESSAGE, rng(seed))
    assert isinstance(given_, Predictions)
    found = through(defense, given_)
    assert float(found.min()) >= 0
    assert torch.allclose(found.sum(dim=-1), torch.ones(6))


@pytest.mark.parametrize("defense", [TopK(k=2), Temperature(t=3.0), LabelOnly()], ids=label)
def test_the_most_likely_class_stays_the_most_likely(defense: Defense) -> None:
    for value in (shares(), logits()):
        assert torch.equal(through(defense, value).argmax(dim=-1), value.values.argmax(dim=-1))


@given(seed=st.integers(0, 50), k=st.integers(1, 3))
def test_logits_are_treated_as_their_softmax(seed: int, k: int) -> None:
    """Above the floor, a defended logit is the logarithm of the defended probability."""
    raw = logits(seed=seed)
    as_shares = Predictions(raw_probabilities(raw), "probabilities", raw.index)
    expected = through(TopK(k=k), as_shares).clamp_min(FLOOR).log()
    assert torch.allclose(through(TopK(k=k), raw), expected, atol=1e-5)
    hot = torch.softmax(through(Temperature(t=2.0), raw), dim=-1)
    assert torch.allclose(hot, through(Temperature(t=2.0), as_shares), atol=1e-5)


def test_settings_that_change_nothing_change_nothing() -> None:
    assert torch.equal(through(TopK(k=4), shares()), shares().values)
    assert torch.equal(through(TopK(k=4), logits()), logits().values)
    assert torch.allclose(through(Temperature(t=1.0), shares()), shares().values, atol=1e-6)


@given(seed=st.integers(0, 100))
def test_rows_on_the_simplex_keep_their_values(seed: int) -> None:
    values = shares(seed=seed).values
    assert torch.allclose(onto_simplex(values), values, atol=1e-6)


def test_gaussian_and_laplace_on_predictions_are_fresh_for_every_client_and_have_the_papers_variance() -> None:
    flat = Predictions(torch.full((20_000, 2), 0.5), "probabilities", torch.arange(20_000))
    for defense in (Gaussian(variance=0.01), Laplace(scale=0.1 / math.sqrt(2))):
        one = rng(3)
        first, second = (defense.apply(flat, AT_MESSAGE, one) for _ in range(2))
        assert not torch.equal(first.values, second.values)
        assert float((first.values - 0.5).var()) == pytest.approx(0.01, rel=0.05)
        assert first.values.shape == flat.values.shape


@pytest.mark.parametrize("defense", [Round(decimals=1), TopK(k=1), Temperature(t=2.0), LabelOnly(), Directed(gamma=1)])
def test_gradients_are_refused_with_a_way_out(defense: Defense) -> None:
    with pytest.raises(RefusedError, match="fedmd"):
        defense.apply(Gradients({"w": torch.zeros(3)}), AT_MESSAGE, rng())


# --- the plan of a federation -------------------------------------------------------------------------------------


def plan(domains: list[int] | None) -> ProtocolPlan:
    marks = None if domains is None else torch.tensor(domains)
    return ProtocolPlan(7, PublicSet(torch.arange(4.0).reshape(4, 1, 1, 1), torch.tensor([3, 2, 1, 0]), marks))


def test_one_shot_leaves_one_round_and_one_release() -> None:
    changed = OneShot().apply(plan(None), Context("protocol"), rng())
    assert changed.rounds == 1
    assert changed.public is not None
    noise = Plan(rounds=9, predictions="probabilities", examples=10, dimension=40)
    assert chain(OneShot(), Gaussian(sigma=2.0)).guarantee(noise).epsilon == pytest.approx(
        Gaussian(sigma=2.0).guarantee(Plan(rounds=1, predictions="probabilities", examples=10)).epsilon
    )


def test_one_shot_counts_wherever_it_stands_in_a_chain() -> None:
    known = Plan(rounds=9, predictions="probabilities", examples=10, dimension=40)
    before, behind = chain(OneShot(), Gaussian(sigma=2.0)), chain(Gaussian(sigma=2.0), OneShot())
    assert before.guarantee(known) == behind.guarantee(known)
    assert "over 1 round(s)" in behind.guarantee(known).statement


def test_cross_domain_drops_the_private_domain_and_keeps_rows_together() -> None:
    changed = CrossDomain().apply(plan([0, 1, 0, 1]), Context("protocol"), rng())
    assert changed.rounds == 7
    assert changed.public is not None
    assert changed.public.inputs.flatten().tolist() == [1.0, 3.0]
    assert changed.public.labels is not None
    assert changed.public.labels.tolist() == [2, 0]
    assert changed.public.domains is not None
    assert changed.public.domains.tolist() == [1, 1]


def test_cross_domain_says_why_it_cannot() -> None:
    with pytest.raises(RefusedError, match="none would be left"):
        CrossDomain().apply(plan([0, 0, 0, 0]), Context("protocol"), rng())
    with pytest.raises(RefusedError, match="does not say"):
        CrossDomain().apply(plan(None), Context("protocol"), rng())
    with pytest.raises(RefusedError, match="no public set"):
        CrossDomain().apply(ProtocolPlan(3), Context("protocol"), rng())


# --- what is proven -----------------------------------------------------------------------------------------------


def test_gaussian_on_probabilities_proves_with_sensitivity_sqrt_two_n() -> None:
    known = Plan(rounds=5, predictions="probabilities", examples=8, dimension=80)
    assert known.sensitivity() == pytest.approx(4.0)
    assert known.l1_sensitivity() == pytest.approx(16.0)
    promised = Gaussian(sigma=3.0).guarantee(known)
    assert promised.kind == "dp"
    assert promised.epsilon is not None
    assert gaussian_delta(promised.epsilon, 3.0, 4.0, 5) == pytest.approx(known.delta, rel=1e-6)
    assert Laplace(scale=4.0).guarantee(known).epsilon == pytest.approx(5 * 16 / 4)


@given(seed=st.integers(0, 200), norm=st.floats(0.1, 5))
def test_no_two_messages_are_farther_apart_than_the_plan_says(seed: int, norm: float) -> None:
    """The bound that the proof rests on, over one-hot and soft predictions, with and without a clip."""
    known = Plan(predictions="probabilities", examples=6, dimension=24)
    draw = rng(seed)
    one, two = (torch.softmax(9 * torch.randn(6, 4, generator=draw), dim=-1) for _ in range(2))
    for defense in (chain(), chain(Clip(norm=norm))):
        behind = defense.after(known)
        a, b = (defense.apply(Predictions(v, "probabilities", torch.arange(6)), AT_MESSAGE, rng()) for v in (one, two))
        apart = (a.values - b.values).flatten()
        assert float(apart.norm()) <= (behind.sensitivity() or 0) * (1 + 1e-5)
        assert float(apart.abs().sum()) <= (behind.l1_sensitivity() or 0) * (1 + 1e-5)


def test_opposite_certainties_reach_the_bound() -> None:
    apart = torch.eye(2)[[0, 0, 0]] - torch.eye(2)[[1, 1, 1]]
    known = Plan(predictions="probabilities", examples=3, dimension=6)
    assert float(apart.norm()) == pytest.approx(known.sensitivity())
    assert float(apart.abs().sum()) == pytest.approx(known.l1_sensitivity())


def test_logits_prove_nothing_until_they_are_clipped() -> None:
    raw = Plan(rounds=3, predictions="unbounded", examples=8, dimension=80)
    assert Gaussian(sigma=1.0).guarantee(raw).kind == "empirical"
    assert Laplace(scale=1.0).guarantee(raw).kind == "empirical"
    clipped = chain(Clip(norm=2.0), Gaussian(sigma=4.0)).guarantee(raw)
    assert clipped.kind == "dp"
    assert clipped.epsilon == pytest.approx(Gaussian(sigma=4.0).guarantee(Plan(rounds=3, l2_bound=2.0)).epsilon)


def test_noise_behind_noise_or_rounding_claims_no_bound() -> None:
    known = Plan(predictions="probabilities", examples=8, dimension=80)
    for first in (Gaussian(sigma=1.0), Round(decimals=1), Directed(gamma=0.1)):
        assert first.after(known).sensitivity() is None
    assert chain(Gaussian(sigma=1.0), TopK(k=1)).guarantee(known).kind == "dp"


def test_a_defense_that_looks_at_the_private_model_behind_the_noise_voids_its_proof() -> None:
    """Which class `directed` moves depends on the client's model, so it is not post-processing of the noisy message."""
    known = Plan(rounds=3, predictions="probabilities", examples=10, dimension=40)
    noise, directed = Gaussian(sigma=20.0), Directed(gamma=0.1)
    behind = chain(noise, directed).guarantee(known)
    assert (behind.kind, behind.epsilon) == ("empirical", None)
    assert "no post-processing" in behind.statement
    # In front of a clip and the noise it is covered like everything else; rounding behind the noise is post-processing.
    assert chain(directed, Clip(norm=1.0), noise).guarantee(known).kind == "dp"
    assert chain(noise, directed, Clip(norm=1.0), noise).guarantee(known).kind == "dp"
    assert chain(noise, Round(decimals=1)).guarantee(known) == noise.guarantee(known)


EMPIRICAL: list[Defense] = [
    Round(decimals=2),
    TopK(k=2),
    Temperature(t=2.0),
    LabelOnly(),
    Directed(gamma=0.01),
    OneShot(),
    CrossDomain(),
]


@pytest.mark.parametrize("defense", EMPIRICAL, ids=label)
def test_an_epsilon_is_refused_with_the_reason_why_there_is_none(defense: Defense) -> None:
    known = Plan(rounds=2, predictions="probabilities", examples=8)
    assert defense.guarantee(known).kind == "empirical"
    with pytest.raises(RefusedError, match="nothing is proven"):
        epsilon_of(defense, known)
    given_ = {"decimals": 2, "k": 2, "t": 2.0, "gamma": 0.01}
    own = {name: value for name, value in given_.items() if hasattr(defense, name)}
    with pytest.raises(pydantic.ValidationError, match="proves no differential privacy"):
        type(defense)(**own, epsilon=1.0)
    assert epsilon_of(Gaussian(sigma=50.0), known) > 0


@pytest.mark.parametrize(
    ("kind", "given_"),
    [
        (Round, {"decimals": -1}),
        (TopK, {"k": 0}),
        (Temperature, {"t": 0.0}),
        (Directed, {"gamma": -0.1}),
        (Directed, {"gamma": 0.1, "a": 0.5}),
        (Gaussian, {"sigma": -0.1}),
        (Laplace, {"scale": -0.1}),
    ],
)
def test_senseless_strengths_are_refused_with_the_name_of_the_field(kind: type, given_: dict[str, float]) -> None:
    with pytest.raises(pydantic.ValidationError, match=list(given_)[-1]):
        kind(**given_)
