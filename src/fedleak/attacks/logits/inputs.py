"""What an inversion network is fed: softened predictions to learn from, optimal ones to be asked with (pli.txt, 3.2).

`Q` names which terms of eq. 4 the optimal inputs maximise (ptbi_supplement.txt table S-4, pli.txt table 3):

    full             p_k + p_0 + alpha H(p_0)     client one-hot, server eq. 6
    client           p_k                          client one-hot; the network sees no server
    client_server    p_k + p_0                    both one-hot
    client_entropy   p_k + alpha H(p_0)           client one-hot, server uniform
    server           p_0 + alpha H(p_0)           server eq. 6; the network sees no client
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Q", "Rows", "optimal_inputs", "optimal_server", "quality", "softened"]

Q = Literal["full", "client", "client_server", "client_entropy", "server"]

Rows = Literal["label", "batch"]
"""label: every row is for its own label. batch: the released code's slip, p_j at every label of the batch."""


def softened(logits: Tensor, tau: float) -> Tensor:
    """softmax(logits / tau) over the last axis, eq. 2."""
    return torch.softmax(logits / tau, dim=-1)


def quality(client: Tensor, server: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Q of eq. 4 for rows of probabilities: p_k[j] + p_0[j] + alpha * entropy(p_0)."""
    at = labels.unsqueeze(-1)
    entropy: Tensor = torch.special.entr(server).sum(dim=-1)
    return client.gather(-1, at).squeeze(-1) + server.gather(-1, at).squeeze(-1) + alpha * entropy


def optimal_server(labels: Tensor, classes: int, alpha: float, rows: Rows = "label") -> Tensor:
    """The server's part of eq. 6, (n, classes): at j e^(1/alpha) / (J - 1 + e^(1/alpha)), elsewhere 1 / (the same).

    >>> optimal_server(torch.tensor([0]), 3, 1.0)
    tensor([[0.5761, 0.2119, 0.2119]])
    """
    # exp(1/alpha) overflows for a small alpha: divide both by it.
    small = math.exp(-1.0 / alpha)
    below = 1.0 + (classes - 1) * small
    values = torch.full((len(labels), classes), small / below, device=labels.device)
    if rows == "batch":
        values[:, labels] = 1.0 / below
        return values
    return values.scatter(1, labels.unsqueeze(1), 1.0 / below)


def optimal_inputs(q: Q, labels: Tensor, classes: int, alpha: float, rows: Rows = "label") -> Tensor:
    """What a trained network is fed to show `labels`: [server, client] (n, 2 classes), or one of them (n, classes)."""
    one_hot = F.one_hot(labels, classes).to(torch.float32)
    if q == "client":
        return one_hot
    if q == "client_server":
        server = one_hot
    elif q == "client_entropy":
        server = torch.full_like(one_hot, 1.0 / classes)
    else:
        server = optimal_server(labels, classes, alpha, rows)
    return server if q == "server" else torch.cat([server, one_hot], dim=1)
