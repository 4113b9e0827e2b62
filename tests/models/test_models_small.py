"""The papers' small networks: shapes, sizes, initial values, and how they are built."""

from __future__ import annotations

import pydantic
import pytest
import torch
from torch import nn

from fedleak.errors import RefusedError
from fedleak.models import MODELS, build_model
from fedleak.types import ModelSpec


def size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 13, 10)])
def test_every_model_gives_one_score_per_class(name: str, shape: tuple[int, ...]) -> None:
    module = build_model(ModelSpec(name), shape, 7, torch.Generator().manual_seed(0))
    assert module(torch.zeros(2, *shape)).shape == (2, 7)


def test_the_papers_large_lenet_has_37632_features() -> None:
    # dlm.txt table 4 at 224x224: 12 x 56 x 56 (misprinted there as 376322)
    module = build_model(ModelSpec("lenet"), (3, 224, 224), 200)
    last = list(module.modules())[-1]
    assert isinstance(last, nn.Linear)
    assert (last.in_features, last.out_features) == (37632, 200)


def test_the_size_of_the_default_audits_lenet_by_hand() -> None:
    # conv 1*12*25+12, two of 12*12*25+12, linear 12*8*8*40+40
    module = build_model(ModelSpec("lenet"), (1, 32, 32), 40)
    assert size(module) == 312 + 2 * 3612 + 30760


def test_the_papers_mlp_has_150528_inputs_and_32_hidden_units() -> None:
    module = build_model(ModelSpec("mlp"), (3, 224, 224), 200)
    assert size(module) == 150528 * 32 + 32 + 32 * 200 + 200


def test_lenet_starts_uniform_within_its_spread() -> None:
    module = build_model(ModelSpec("lenet"), (1, 32, 32), 40, torch.Generator().manual_seed(3))
    values = torch.cat([value.detach().flatten() for value in module.parameters()])
    assert float(values.abs().max()) <= 0.5
    assert float(values.var()) == pytest.approx(1 / 12, rel=0.03)


def test_the_generator_decides_the_initial_values_and_the_global_one_is_left_alone() -> None:
    state = torch.get_rng_state()
    one, two, other = (
        build_model(ModelSpec("cnn"), (1, 8, 8), 3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_factory_wins_over_the_name() -> None:
    module = build_model(ModelSpec("mine", factory=lambda: nn.Linear(2, 3)), (2,), 3)
    assert isinstance(module, nn.Linear)


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RefusedError, match=r"model='resnet'.*lenet"):
        build_model(ModelSpec("resnet"), (1, 8, 8), 3)


def test_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(pydantic.ValidationError, match="width"):
        build_model(ModelSpec("lenet", {"width": 3}), (1, 8, 8), 3)
