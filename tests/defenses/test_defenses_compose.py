"""Chains: order, stages, associativity, labels and what a chain proves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedleak.defenses import (
    DEFENSES,
    DPSGD,
    Chain,
    Clip,
    Context,
    Defense,
    Directed,
    Gaussian,
    Guarantee,
    Laplace,
    OneShot,
    Plan,
    Prune,
    Sparsify,
    Stage,
    chain,
    identity,
    label,
)
from fedleak.defenses.accounting import gaussian_epsilon
from fedleak.types import Gradients

AT_MESSAGE = Context("message")


@dataclass(frozen=True)
class Doubling:
    """A user's own defense, at the stage of the examples: no registration needed."""

    paper: ClassVar[str] = ""
    revision: ClassVar[int] = 1
    stage: ClassVar[Stage | None] = "examples"

    def apply(self, value: Any, context: Context, rng: torch.Generator) -> Any:
        return 2 * value

    def after(self, plan: Plan) -> Plan:
        return plan

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("none", "none: it only doubles")


def run(defense: Defense, seed: int = 0) -> torch.Tensor:
    sent = Gradients({"w": torch.linspace(-1, 1, 21)})
    out: Gradients = defense.apply(sent, AT_MESSAGE, torch.Generator().manual_seed(seed))
    return out.tensors["w"]


single = st.one_of(
    st.just(identity),
    st.floats(0.1, 2).map(lambda v: Gaussian(sigma=v)),
    st.floats(0.1, 2).map(lambda v: Laplace(scale=v)),
    st.floats(0.1, 2).map(lambda v: Clip(norm=v)),
    st.floats(0, 0.9).map(lambda v: Sparsify(fraction=v)),
)


@given(a=single, b=single, c=single)
def test_chaining_is_associative_and_identity_is_neutral(a: Defense, b: Defense, c: Defense) -> None:
    left, right = chain(chain(a, b), c), chain(a, chain(b, c))
    assert left == right == chain(identity, a, b, identity, c)
    assert torch.equal(run(left), run(right))


@given(a=single, b=single)
def test_a_chain_does_its_members_in_order(a: Defense, b: Defense) -> None:
    sent, rng = Gradients({"w": torch.linspace(-1, 1, 21)}), torch.Generator().manual_seed(3)
    by_hand = b.apply(a.apply(sent, AT_MESSAGE, rng), AT_MESSAGE, rng)
    assert torch.equal(run(chain(a, b), 3), by_hand.tensors["w"])


def test_the_order_matters() -> None:
    assert float(run(chain(Gaussian(sigma=9.0), Clip(norm=1.0))).norm()) == pytest.approx(1.0, rel=1e-5)
    assert float(run(chain(Clip(norm=1.0), Gaussian(sigma=9.0))).norm()) > 10


def test_a_chain_inside_a_chain_acts_as_well() -> None:
    nested = Chain((Chain((Clip(norm=1.0),)), Sparsify(fraction=0.5)))
    assert torch.equal(run(nested), run(chain(Clip(norm=1.0), Sparsify(fraction=0.5))))


def test_only_members_of_the_stage_act() -> None:
    mixed = chain(Doubling(), Sparsify(fraction=0.9))
    rng = torch.Generator()
    assert mixed.apply(3.0, Context("examples"), rng) == 6.0
    assert mixed.apply(3.0, Context("gradients"), rng) == 3.0
    assert isinstance(mixed, Defense)


def test_the_empty_chain_is_no_defense() -> None:
    assert chain() == chain(identity) == Chain(())
    assert chain().guarantee(Plan()).kind == "none"
    assert label(chain()) == label(identity) == "none"


def test_labels_leave_out_defaults() -> None:
    assert label(Gaussian(sigma=0.01)) == "gaussian(sigma=0.01)"
    assert label(chain(Clip(norm=1), Gaussian(sigma=0.01))) == "clip(norm=1)+gaussian(sigma=0.01)"
    assert label(Sparsify(fraction=0.9, of="weights")) == "sparsify(fraction=0.9, of=weights)"
    assert label(Doubling()) == "Doubling"


@pytest.mark.parametrize("name", sorted(DEFENSES))
def test_every_registered_defense_says_what_it_is(name: str) -> None:
    kind = DEFENSES[name]
    assert kind.stage in ("protocol", "examples", "gradients", "message")
    assert kind.revision >= 1
    for section in ("Sees:", "Needs:", "Guarantees:"):
        assert section in (kind.__doc__ or "")


def test_noise_without_a_clip_proves_nothing() -> None:
    for noise in (Gaussian(sigma=1.0), Laplace(scale=1.0)):
        found = noise.guarantee(Plan(rounds=3))
        assert (found.kind, found.epsilon) == ("none", None)
        assert "no bounded sensitivity" in found.statement


def test_clip_then_gaussian_is_client_level_dp_with_twice_the_norm() -> None:
    found = chain(Clip(norm=0.5), Gaussian(sigma=4.0)).guarantee(Plan(rounds=9, delta=1e-6))
    assert found.kind == "dp"
    assert found.epsilon == pytest.approx(gaussian_epsilon(4.0, 1.0, 1e-6, 9))
    assert found.delta == 1e-6
    assert "replaced" in found.statement


def test_a_client_with_data_or_none_has_the_norm_itself_as_sensitivity() -> None:
    found = chain(Clip(norm=0.5), Gaussian(sigma=4.0)).guarantee(Plan(neighbours="add_remove", delta=1e-6))
    assert found.epsilon == pytest.approx(gaussian_epsilon(4.0, 0.5, 1e-6))
    assert "zeros under the same noise" in found.statement


def test_clip_then_laplace_pays_the_square_root_of_the_dimension() -> None:
    # L1 sensitivity 2 * 0.5 * sqrt(100) = 10; epsilon 10 / 5 = 2 a round, 6 over three
    found = chain(Clip(norm=0.5), Laplace(scale=5.0)).guarantee(Plan(rounds=3, dimension=100))
    assert found.epsilon == pytest.approx(6.0)
    assert found.delta == 0.0


def test_the_l1_bound_is_reached_by_equal_entries() -> None:
    # Two updates on the clip's sphere, opposite and with equal entries, are exactly 2 C sqrt(d) apart in L1 norm.
    entry = torch.full((100,), 0.5 / 10)
    assert float(entry.norm()) == pytest.approx(0.5)
    assert float((entry - -entry).abs().sum()) == pytest.approx(2 * 0.5 * 10)


def test_noise_before_the_clip_is_not_covered_by_it() -> None:
    assert chain(Gaussian(sigma=4.0), Clip(norm=0.5)).guarantee(Plan()).kind == "none"


def test_post_processing_keeps_a_proof_and_pruned_weights_lose_the_bound() -> None:
    plan = Plan()
    proven = chain(Clip(norm=1), Gaussian(sigma=2.0)).guarantee(plan)
    assert chain(Clip(norm=1), Gaussian(sigma=2.0), Sparsify(fraction=0.5)).guarantee(plan) == proven
    assert chain(Clip(norm=1), Sparsify(fraction=0.5), Gaussian(sigma=2.0)).guarantee(plan) == proven
    pruned = chain(Clip(norm=1), Sparsify(fraction=0.5, of="weights"), Gaussian(sigma=2.0))
    assert pruned.guarantee(plan).kind == "empirical"


@pytest.mark.parametrize("behind", [Prune(fraction=0.9), DPSGD(noise_multiplier=0.001, max_grad_norm=0.001)])
def test_what_takes_examples_apart_behind_dp_sgd_leaves_it_no_proof(behind: Defense) -> None:
    """The noise of dp_sgd is on the sum; a number that pruning leaves in one example of ten has a tenth of it."""
    plan, strong = Plan(epochs=1), DPSGD(noise_multiplier=9.0, max_grad_norm=1000.0)
    assert strong.guarantee(plan).kind == "dp"
    found = chain(strong, behind).guarantee(plan)
    assert found.epsilon == behind.guarantee(plan).epsilon, "what stands last may have a proof of its own"
    # In front of it, or on the message that it made, nothing is lost.
    assert chain(behind, strong).guarantee(plan).epsilon == strong.guarantee(plan).epsilon
    assert chain(strong, Prune(fraction=0.9, on="message")).guarantee(plan) == strong.guarantee(plan)


def test_pruned_examples_have_less_of_the_noise_than_is_proven() -> None:
    """The same as an attack on one release: ten zero gradients, of which only the noise should be left."""
    zero, step = {"w": torch.zeros(10, 20_000)}, Context("gradients")
    strong = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0)
    plain = strong.apply(zero, step, torch.Generator().manual_seed(1))["w"].mean(dim=0)
    both = chain(strong, Prune(fraction=0.9)).apply(zero, step, torch.Generator().manual_seed(1))["w"]
    alone = (both != 0).sum(dim=0) == 1
    assert float(both.mean(dim=0)[alone].std()) == pytest.approx(float(plain.std()) / 10, rel=0.1)


def test_a_proof_of_the_message_does_not_depend_on_where_the_gradients_are_pruned() -> None:
    noisy = (Clip(norm=1.0), Gaussian(sigma=2.0))
    proven = chain(*noisy).guarantee(Plan())
    assert chain(*noisy, Prune(fraction=0.5)).guarantee(Plan()) == proven
    assert chain(Prune(fraction=0.5), *noisy).guarantee(Plan()) == proven


def test_an_unknown_number_of_numbers_is_not_taken_for_one() -> None:
    found = chain(Clip(norm=0.5), Laplace(scale=1.0)).guarantee(Plan())
    assert (found.kind, found.epsilon) == ("none", None)
    assert "dimension" in found.statement
    known = Plan(predictions="probabilities", examples=3)  # 2 x 3 at most, however many classes there are
    assert Laplace(scale=1.0).guarantee(known).epsilon == pytest.approx(6.0)


def test_the_tighter_of_two_clips_counts() -> None:
    one = chain(Clip(norm=1), Clip(norm=3), Gaussian(sigma=2.0)).guarantee(Plan())
    assert one == chain(Clip(norm=1), Gaussian(sigma=2.0)).guarantee(Plan())


def test_buffers_sent_beside_the_weights_void_the_proof() -> None:
    found = chain(Clip(norm=1), Gaussian(sigma=2.0)).guarantee(Plan(buffers=True))
    assert found.kind == "none"
    assert "buffers" in found.statement


def test_sparsification_is_empirical() -> None:
    assert Sparsify(fraction=0.9).guarantee(Plan()).kind == "empirical"
    assert chain(Clip(norm=1), Sparsify(fraction=0.9)).guarantee(Plan()).kind == "empirical"


@pytest.mark.parametrize("wrapped", [0, 1, 2])
def test_a_chain_inside_a_chain_hides_nothing_that_voids_a_proof(wrapped: int) -> None:
    """Also where somebody makes it with the class, which does not flatten."""
    members = (Clip(norm=1.0), Gaussian(sigma=1.0), Directed(gamma=1.0))
    nested = Chain(tuple(Chain((one,)) if place >= wrapped else one for place, one in enumerate(members)))
    plan = Plan(rounds=3, predictions="probabilities", examples=5)
    assert nested.guarantee(plan) == chain(*members).guarantee(plan)
    assert nested.guarantee(plan).kind == "empirical"
    once = Chain((Gaussian(sigma=1.0), Chain((OneShot(),))))
    assert once.guarantee(plan) == chain(Gaussian(sigma=1.0), OneShot()).guarantee(plan)
