"""`fedleak.simulate` with the logit protocols: labels of the public set, and clients with networks of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedleak
from fedleak.errors import DataError, RefusedError, ShapeError
from fedleak.types import Predictions

QUICK: dict[str, Any] = {"rounds": 1, "batch_size": 4, "public_batch_size": 8}


def faces(labels: list[int], seed: int) -> fedleak.Examples:
    rng = torch.Generator().manual_seed(seed)
    return fedleak.Examples(torch.rand(len(labels), 1, 8, 8, generator=rng), torch.tensor(labels))


CLIENTS = {"clinic": faces([0, 1, 0], 1), "ward": faces([2, 3, 2, 3], 2), "desk": faces([1, 3], 3)}
TEST = faces([0, 1, 2, 3], 4)
SHOWN = faces([4, 5, 6, 0, 1, 2, 3, 4], 5)
PUBLIC = fedleak.PublicSet(SHOWN.inputs, SHOWN.labels, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))


def linear(outputs: int = 7) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))


def deep() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 7))


def sent(recording: Any) -> dict[str, torch.Tensor]:
    found = {}
    for message in recording.transcript.rounds[0].received:
        assert isinstance(message.payload, Predictions)
        found[message.sender] = message.payload.values
    return found


@pytest.mark.parametrize(("protocol", "classes"), [("fedmd", 7), ("fedgems", 7), ("dsfl", 4)])
def test_public_labels_count_where_the_protocol_trains_on_them(protocol: str, classes: int) -> None:
    run = fedleak.simulate(CLIENTS, TEST, model="mlp", protocol=protocol, public=PUBLIC, device="cpu", **QUICK)
    assert run.transcript.setup.classes == classes
    assert run.transcript.setup.disclosed["target_labels"] == [0, 1, 2, 3]
    assert {values.shape for values in sent(run).values()} == {(8, classes)}


def test_too_few_classes_for_the_public_labels_are_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match=r"labels from 0 to 6; they must lie in 0 \.\. 3"):
        fedleak.simulate(CLIENTS, TEST, model="mlp", protocol="fedmd", public=PUBLIC, classes=4, device="cpu", **QUICK)


@pytest.mark.parametrize("protocol", ["fedmd", "fedgems"])
def test_clients_may_bring_networks_of_their_own(protocol: str) -> None:
    settings = {"protocol": protocol, "public": PUBLIC, "device": "cpu", **QUICK}
    if protocol == "fedmd":  # then a first upload depends on nothing but its client
        settings |= {"transfer_epochs": 0}
    mixed = fedleak.simulate(CLIENTS, TEST, model=linear, models={"ward": deep, "desk": "mlp"}, **settings)
    assert mixed.transcript.setup.model.name.endswith(":linear")
    alike = {
        "clinic": fedleak.simulate(CLIENTS, TEST, model=linear, **settings),
        "ward": fedleak.simulate(CLIENTS, TEST, model=linear, models=dict.fromkeys(CLIENTS, deep), **settings),
        "desk": fedleak.simulate(CLIENTS, TEST, model=linear, models=dict.fromkeys(CLIENTS, "mlp"), **settings),
    }
    for name, run in alike.items():
        assert torch.allclose(sent(mixed)[name], sent(run)[name], atol=1e-6), name
    finding = fedleak.attack(mixed.transcript, "pli", gamma=0.0, width=0.02, device="cpu")
    assert finding.victims[0].status == "ok"


def test_networks_that_do_not_fit_are_refused_with_the_reason() -> None:
    settings = {"protocol": "fedmd", "public": PUBLIC, "device": "cpu", **QUICK}
    with pytest.raises(ShapeError, match=r"the network of ward gives \(3,\) numbers for an image, but there are 7"):
        fedleak.simulate(CLIENTS, TEST, model=linear, models={"ward": lambda: linear(3)}, **settings)
    with pytest.raises(ShapeError, match=r"the network of clinic gives \(3,\) numbers"):
        fedleak.simulate(CLIENTS, TEST, model=lambda: linear(3), **settings)
    with pytest.raises(DataError, match=r"models: \['word'\] are no clients; the clients are clinic, ward, desk"):
        fedleak.simulate(CLIENTS, TEST, model=linear, models={"word": deep}, **settings)
    with pytest.raises(RefusedError, match="clients of fedavg train one network"):
        fedleak.simulate(CLIENTS, TEST, model=linear, models={"ward": deep}, protocol="fedavg", examples=1)


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 7))


@pytest.mark.parametrize("protocol", ["fedmd", "fedavg"])
def test_networks_that_do_not_take_the_pictures_are_refused_before_training(protocol: str) -> None:
    def narrow() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(63, 7))

    settings = {"public": PUBLIC, **QUICK} if protocol == "fedmd" else {}
    with pytest.raises(ShapeError, match=rf"{protocol}: .*does not take pictures of \(1, 8, 8\) \(mat1 and mat2"):
        fedleak.simulate(CLIENTS, TEST, model=narrow, protocol=protocol, device="cpu", **settings)
    if protocol == "fedmd":
        with pytest.raises(ShapeError, match="the network of desk does not take"):
            fedleak.simulate(
                CLIENTS, TEST, model=linear, models={"desk": narrow}, protocol=protocol, device="cpu", **settings
            )
    else:
        with pytest.raises(ShapeError, match=r"fedavg: the network gives \(3,\) numbers .* there are 4 classes"):
            fedleak.simulate(CLIENTS, TEST, model=lambda: linear(3), protocol=protocol, device="cpu")


@pytest.mark.parametrize("protocol", ["fedmd", "fedavg"])
def test_a_batch_of_one_picture_that_batchnorm_cannot_take_is_refused_with_the_way_out(protocol: str) -> None:
    """clinic holds three pictures: a batch of two, and one picture is left."""
    settings = {"public": PUBLIC, **QUICK} if protocol == "fedmd" else {}
    settings |= {"model": normed, "protocol": protocol, "device": "cpu"}
    with pytest.raises(RefusedError, match=r"one number a channel .* \(batch_size, public_batch_size, examples\)"):
        fedleak.simulate(CLIENTS, TEST, **{**settings, "batch_size": 2})
    fedleak.simulate(CLIENTS, TEST, **{**settings, "batch_size": 4})


@pytest.mark.parametrize("protocol", ["fedsgd", "fedmd", "dsfl"])
def test_pixels_and_labels_of_another_kind_are_refused_before_training_by_the_name_of_who_holds_them(
    protocol: str,
) -> None:
    ward, settings = CLIENTS["ward"], {} if protocol == "fedsgd" else {"public": PUBLIC, **QUICK}

    def run(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        clients = {**CLIENTS, "ward": fedleak.Examples(inputs, labels)}
        fedleak.simulate(clients, TEST, model="mlp", protocol=protocol, device="cpu", **settings)

    for labels in (ward.labels.int(), ward.labels.float(), ward.labels[:3]):
        with pytest.raises(DataError, match=r"ward: labels of shape \(\d,\) and torch\.\w+ for 4 images; give one int"):
            run(ward.inputs, labels)
    for inputs in (ward.inputs.double(), (255 * ward.inputs).to(torch.uint8)):
        with pytest.raises(DataError, match=r"ward: pixels of torch\.\w+; they must be float32 from 0 to 1"):
            run(inputs, ward.labels)
