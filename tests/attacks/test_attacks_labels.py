"""Labels read off an update: batches whose labels are known by construction, heads anywhere, any scale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

from fedleak.attacks.inversion.dlg import DLG
from fedleak.attacks.inversion.dlm_plus import DLMPlus
from fedleak.attacks.inversion.head import Head, find_head
from fedleak.attacks.inversion.idlg import IDLG
from fedleak.attacks.inversion.labels import idlg, llg, whole, yin
from fedleak.errors import RefusedError
from fedleak.learning.functional import Network, cross_entropy
from fedleak.models import build_model
from fedleak.types import ModelSpec

CLASSES = 6


class HeadFirst(nn.Module):
    """The classifier is the first of the parameters; a hidden layer is as wide as there are classes."""

    def __init__(self, bias: bool = True, end: Callable[[Tensor], Tensor] = nn.Identity()) -> None:  # noqa: B008
        super().__init__()
        self.head = nn.Linear(CLASSES, CLASSES, bias=bias)
        self.hidden = nn.Linear(27, CLASSES)
        self.end = end

    def forward(self, inputs: Tensor) -> Tensor:
        return self.end(self.head(self.hidden(inputs.flatten(1)).sigmoid()))


class Bare(nn.Module):
    """Its parameters belong to no layer, and a convolution of size 1 is the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Parameter(torch.randn(CLASSES, 4, 1, 1))
        self.first = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(inputs, self.first).sigmoid(), self.last).mean(dim=(2, 3))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Network(make())


def noise(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(64, *shape, generator=torch.Generator().manual_seed(seed))


def head_of(network: Network, shape: tuple[int, ...] = (3, 3, 3), classes: int = CLASSES) -> Head:
    return find_head(network, network.initial(), network.buffers(), noise(shape), classes)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (HeadFirst, ("head.weight", "head.bias")),
        (lambda: HeadFirst(bias=False), ("head.weight", None)),
        (lambda: HeadFirst(end=nn.LogSoftmax(dim=1)), ("head.weight", "head.bias")),
        (Bare, ("last", None)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(27, CLASSES)), ("1.weight", "1.bias")),
    ],
)
def test_the_head_is_found_by_what_it_does(make: Callable[[], nn.Module], names: tuple[str, str | None]) -> None:
    head = head_of(seeded(make))
    assert (head.weight, head.bias) == names
    assert float(head.expected.sum()) == pytest.approx(1, abs=1e-5)


def test_between_two_classes_the_head_is_found_too() -> None:
    network = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 2)))
    assert head_of(network, (1, 2, 2), classes=2).weight == "3.weight"


def test_a_network_without_one_row_per_class_is_refused() -> None:
    with pytest.raises(RefusedError, match="one row for each of the 7 classes"):
        head_of(seeded(HeadFirst), classes=7)


def gradient(network: Network, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    return grad(lambda w: cross_entropy(network(w, images), labels))(network.initial())


def batch(seed: int, count: int, shape: tuple[int, ...], classes: int, distinct: bool = False) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(0, classes, (count,), generator=rng)
    if distinct:
        labels = torch.randperm(classes, generator=rng)[:count]
    coarse = torch.rand(count, shape[0], 3, 3, generator=rng)
    return F.interpolate(coarse, size=shape[1:], mode="bilinear"), labels.sort().values


def test_the_rule_by_hand() -> None:
    """One image of class 1 with p = (0.5, 0.3, 0.2) and features (2, -3): rows are (p - y) times the features."""
    pulls = torch.tensor([0.5, -0.7, 0.2])
    update = {"w": pulls[:, None] * torch.tensor([[2.0, -3.0]]), "b": pulls}
    expected = torch.tensor([0.5, 0.3, 0.2])
    with_bias, without = Head("w", "b", expected, -1.0), Head("w", None, expected, -1.0)
    for head in (with_bias, without):
        assert idlg(update, head, 1).tolist() == [1]
        assert llg(update, head, 1, scale=1.0).tolist() == [1]
    doubled = {name: 0.01 * value for name, value in update.items()}
    assert llg(doubled, with_bias, 1).tolist() == [1]  # no scale known: class 0 and 2 are taken not to occur


@pytest.mark.parametrize("model", ["lenet", "mlp", "cnn"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8)])
def test_idlg_reads_the_label_of_one_image_with_and_without_a_bias(model: str, shape: tuple[int, ...]) -> None:
    for seed in range(10):
        network = Network(build_model(ModelSpec(model), shape, CLASSES, torch.Generator().manual_seed(seed)))
        update = gradient(network, *batch(seed, 1, shape, CLASSES))
        label = batch(seed, 1, shape, CLASSES)[1]
        head = head_of(network, shape)
        assert idlg(update, head, 1).tolist() == label.tolist()
        bare = Head(head.weight, None, head.expected, head.features)
        assert idlg(update, bare, 1).tolist() == label.tolist()


def test_yin_finds_distinct_labels() -> None:
    """On features that are not negative. 30 batches of four images among ten classes; at least 95 % of the labels."""
    right = 0
    for seed in range(30):
        network = Network(build_model(ModelSpec("mlp"), (1, 8, 8), 10, torch.Generator().manual_seed(seed)))
        images, labels = batch(seed, 4, (1, 8, 8), 10, distinct=True)
        found = yin(gradient(network, images, labels), head_of(network, (1, 8, 8), 10), 4)
        assert found.tolist() == sorted(set(found.tolist()))
        right += len(set(found.tolist()) & set(labels.tolist()))
    assert right >= 0.95 * 30 * 4


def agreeing(found: Tensor, labels: Tensor, classes: int) -> int:
    mine, theirs = torch.bincount(found, minlength=classes), torch.bincount(labels, minlength=classes)
    return int(torch.minimum(mine, theirs).sum())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("classes", "images"), [(10, 8), (10, 32), (5, 64)])
def test_llg_counts_labels_also_of_more_images_than_classes(classes: int, images: int, bias: bool) -> None:
    """From gradients, on untrained networks: at least 95 % of the labels, over 15 batches."""
    right = 0
    for seed in range(15):
        network = Network(build_model(ModelSpec("mlp"), (1, 8, 8), classes, torch.Generator().manual_seed(seed)))
        pictures, labels = batch(seed, images, (1, 8, 8), classes)
        head = head_of(network, (1, 8, 8), classes)
        head = head if bias else Head(head.weight, None, head.expected, head.features)
        right += agreeing(llg(gradient(network, pictures, labels), head, images, 1.0), labels, classes)
    assert right >= 0.95 * 15 * images


def test_llg_without_a_scale_is_right_where_a_class_is_missing() -> None:
    right = 0
    for seed in range(15):
        network = Network(build_model(ModelSpec("mlp"), (1, 8, 8), 10, torch.Generator().manual_seed(seed)))
        pictures, labels = batch(seed, 24, (1, 8, 8), 9)
        update = {name: 0.01 * value for name, value in gradient(network, pictures, labels).items()}
        right += agreeing(llg(update, head_of(network, (1, 8, 8), 10), 24), labels, 10)
    assert right >= 0.95 * 15 * 24


@pytest.mark.parametrize(
    ("shares", "total", "labels"),
    [
        ([0.5, 0.25, 0.25], 4, [0, 0, 1, 2]),
        ([0.5, -0.1, 0.5], 3, [0, 0, 2]),  # a negative share is none; the first of equal remainders is rounded up
        ([0.0, 0.0, 1e-3], 2, [2, 2]),
    ],
)
def test_shares_become_whole_labels(shares: list[float], total: int, labels: list[int]) -> None:
    assert whole(torch.tensor(shares), total).tolist() == labels


def test_what_a_rule_cannot_say_is_refused() -> None:
    update = {"w": torch.ones(3, 2)}
    head = Head("w", None, torch.full((3,), 1 / 3), 2.0)
    with pytest.raises(RefusedError, match="label of one image, and there are 2"):
        idlg(update, head, 2)
    with pytest.raises(RefusedError, match="4 images cannot have distinct ones among 3"):
        yin(update, head, 4)
    with pytest.raises(RefusedError, match="no class pulls"):
        whole(torch.tensor([float("nan"), 1.0]), 1)


@pytest.mark.parametrize("sends", ["gradients", "weights"])
@pytest.mark.parametrize("attack", [IDLG(steps=2), DLMPlus(steps=2, labels="idlg"), DLG(steps=2, labels="llg")])
def test_labels_are_fixed_from_the_start_whatever_was_sent(attack: IDLG | DLMPlus, sends: str, scene: Callable) -> None:
    """The sign of a difference of weights is settled before the rules see it: two steps, and every label is right."""
    made = scene((1, 1, 1), sends=sends, disclosed={"lr": 0.1, "epochs": 1, "batch_size": None})
    found = attack(made.transcript, rng=torch.Generator().manual_seed(0))
    assert [v.labels.tolist() for v in found.victims] == [label.tolist() for label in made.labels]
    assert found.notes["labels"] == attack.labels


def test_a_rule_that_does_not_fit_refuses_its_victim_and_the_others_go_on(scene: Callable) -> None:
    made = scene((2, 1))
    found = IDLG(steps=1)(made.transcript, rng=torch.Generator().manual_seed(0))
    assert [v.status for v in found.victims] == ["refused", "ok"]
    assert "use 'yin' or 'llg'" in found.victims[0].reason


def test_more_images_than_classes_are_attacked_with_counted_labels(scene: Callable) -> None:
    made = scene((5,), classes=3)
    (victim,) = DLMPlus(steps=2, labels="llg")(made.transcript, rng=torch.Generator().manual_seed(0)).victims
    assert victim.inputs.shape == (5, 1, 8, 8)
    assert victim.labels.tolist() == sorted(made.labels[0].tolist())
