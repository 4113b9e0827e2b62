"""What a logit protocol cannot work with, refused before anything is trained."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fedleak.defenses.compose import Chain
from fedleak.errors import DataError, RefusedError, ShapeError
from fedleak.federation.base import Problem, check_kinds
from fedleak.federation.logits.client import Clients
from fedleak.federation.networks import check_network
from fedleak.learning.stacked import Stack
from fedleak.types import PublicSet

__all__ = ["allowed", "check_outputs", "check_targets", "held", "usable_public"]


def usable_public(name: str, problem: Problem, needs_labels: bool) -> PublicSet:
    """The public set, if the protocol can work with it."""
    public = problem.public
    if public is None or len(public) == 0:
        raise RefusedError(
            f"{name}: clients predict on public examples, but there are none; give the data a public set"
        )
    if tuple(public.inputs.shape[1:]) != problem.input_shape:
        raise ShapeError(
            f"the public set: images of {tuple(public.inputs.shape[1:])}, the clients' are {problem.input_shape}"
        )
    if not bool(torch.isfinite(public.inputs).all()):
        raise DataError("the public set: pixels that are not finite numbers; they must lie in 0 .. 1")
    _check_domains(public)
    check_kinds("the public set", public.inputs, public.labels)
    if public.labels is None:
        if needs_labels:
            raise RefusedError(
                f"{name}: trains on the labels of the public set, which has none; label it (data.public.labels = "
                "true), use dsfl, or fedmd with public_labels=false"
            )
    elif needs_labels and not 0 <= int(public.labels.min()) <= int(public.labels.max()) < problem.classes:
        raise DataError(
            f"the public set: labels from {int(public.labels.min())} to {int(public.labels.max())}; they must lie in "
            f"0 .. {problem.classes - 1}, the number of classes less one"
        )
    return public


def _check_domains(public: PublicSet) -> None:
    """Only attacks read them, and by then all the training would have been for nothing."""
    domains = public.domains
    if domains is None:
        return
    if tuple(domains.shape) != (len(public),):
        raise ShapeError(
            f"the public set: domains of shape {tuple(domains.shape)} for {len(public)} images; give one for each"
        )
    if strange := sorted(set(domains.tolist()) - {0, 1}):
        raise DataError(
            f"the public set: domains {strange}; they must be 0 (like the private pictures) or 1 (of another kind)"
        )


def held(problem: Problem) -> list[int]:
    """The labels of all clients' examples."""
    return sorted({int(label) for own in problem.clients.values() for label in own.labels.tolist()})


def check_targets(problem: Problem) -> None:
    """Every private label is somebody's."""
    if nobodys := sorted(set(problem.targets) - set(held(problem))):
        raise DataError(
            f"targets: no client holds an example of {nobodys}; private labels are those of the clients' own examples: "
            "leave these out, or give a client examples of them"
        )


def allowed(name: str, defense: Chain) -> Chain:
    """The defense, if its proof is about what these protocols do."""
    for member in defense.members:
        if member.stage == "gradients":
            raise RefusedError(
                f"{name}: {type(member).__name__} acts on the gradients of single examples, but clients also learn "
                "from each other's predictions, which its proof does not cover; use a defense of the predictions "
                "(gaussian, laplace, directed, ...), or dp_sgd with fedsgd or fedavg"
            )
    return defense


def check_outputs(name: str, clients: Clients, server: Stack | None, inputs: Tensor, classes: int) -> None:
    """Networks of somebody's own may not take the pictures, or have more or fewer outputs than there are classes."""
    asked = [(f"the network of {client}", stack) for client, stack in clients.networks()]
    if server is not None:
        asked.append(("the network of the server", server))
    for who, stack in asked:
        one = inputs[:1]
        check_network(f"{name}: {who}", partial(_answer, stack, one), tuple(one.shape[1:]), classes, classes)


def _answer(stack: Stack, inputs: Tensor) -> Tensor:
    return stack.predict_each(inputs)[0]
