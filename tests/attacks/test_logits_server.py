"""f_0, the model that the attack trains itself where a recording has no predictions of the server."""

from __future__ import annotations

import pytest
import torch
from logit_parts import stage_logits
from torch import Tensor, nn

from fedleak.attacks.logits.ptbi import PTBI
from fedleak.types import ClassReconstruction, ModelSpec, Transcript


def run(seen: Transcript, seed: int = 0) -> ClassReconstruction:
    return PTBI(width=0.02, lr=1e-2, steps=1, batch_size=16)(seen, rng=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("labelled", [True, False])
def test_without_the_servers_predictions_the_attack_trains_its_own_model(labelled: bool) -> None:
    seen = stage_logits(rounds=2, server=False, labelled=labelled).transcript
    finding, again = run(seen), run(seen)
    assert "f_0 trained by the attack" in finding.notes["server"]
    assert torch.equal(finding.victims[0].inputs, again.victims[0].inputs)


def test_what_it_drops_is_drawn_anew_in_every_round_and_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []
    plain = nn.Dropout.forward

    def look(layer: nn.Dropout, inputs: Tensor) -> Tensor:
        if layer.training:
            drawn.append(tuple(torch.get_rng_state().tolist()))
        return plain(layer, inputs)

    monkeypatch.setattr(nn.Dropout, "forward", look)
    drops = ModelSpec("adamsa_cnn", {"widths": [4, 4], "dropout": 0.5})
    seen = stage_logits(rounds=2, server=False).changed(model=drops)
    run(seen, seed=0)
    run(seen, seed=1)
    assert len(drawn) > 4
    assert len(set(drawn)) == len(drawn)
