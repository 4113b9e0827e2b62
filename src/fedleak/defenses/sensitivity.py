"""How strongly each entry of a target pulls at a model: norms of gradients, for all classes and examples at once.

The loss of an imitator on one example is L(theta, p) = -sum_j p_j log q_j(x; theta): linear in its target p. So

    G(theta, p') - G(theta, p) = -sum_j (p'_j - p_j) grad log q_j(x; theta)

and its norm needs the J gradients grad log q_j once, whatever the candidates p' are: one Jacobian of an example
instead of a backward pass for every candidate. Where only entry j moves, by d, the norm is |d| |grad log q_j|.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from fedleak.errors import RefusedError
from fedleak.learning.functional import Network
from fedleak.types import Named

__all__ = ["changes_of_gradient", "last_layer_changes"]

BYTES_AT_ONCE = 256 * 2**20
"""What the Jacobians of one chunk of examples may take; on a GPU eight times as much."""


def changes_of_gradient(network: Network, parameters: Named, inputs: Tensor, moves: Tensor, order: float) -> Tensor:
    """(n, candidates): the L_order norm of what each candidate changes in the gradient on its example.

    `moves` is (n, J) where candidate j moves entry j alone, by moves[i, j]; or (n, candidates, J) where each is a move
    of the whole target.
    """
    trained = {name for name, _ in network.module.named_parameters()}
    fixed = {name: value for name, value in parameters.items() if name not in trained}
    own = {name: value for name, value in parameters.items() if name in trained}

    def log_shares(at: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.log_softmax(network({**fixed, **at}, x.unsqueeze(0)), dim=-1).squeeze(0)

    slopes = jacrev(log_shares)

    def one(x: Tensor, move: Tensor) -> Tensor:
        return _norms([slope.flatten(1) for slope in slopes(own, x).values()], move, order)

    size = sum(value.numel() for value in own.values()) * moves.shape[-1] * inputs.element_size()
    chunk = max(1, BYTES_AT_ONCE * (8 if inputs.is_cuda else 1) // max(1, size))
    return _in_chunks(lambda x, move: _vectorised(network, one, x, move), inputs, moves, chunk)


def last_layer_changes(network: Network, parameters: Named, inputs: Tensor, moves: Tensor, order: float) -> Tensor:
    """The same for the bias of the last layer alone, in closed form from one forward pass: d log q_j / d b = e_j - q.

    The weights of that layer see the same times the features, one number for each example. A heuristic: it forgets
    every other layer, and weighs all examples alike.
    """

    def part(x: Tensor, move: Tensor) -> Tensor:
        with torch.no_grad():
            shares = torch.softmax(network(parameters, x), dim=-1)
        eye = torch.eye(shares.shape[-1], dtype=shares.dtype, device=shares.device)
        return vmap(lambda q, m: _norms([eye - q], m, order))(shares, move)

    return _in_chunks(part, inputs, moves, 1024)


def _norms(slopes: list[Tensor], move: Tensor, order: float) -> Tensor:
    """Norms over all parameters of move @ slopes; slopes are (J, parameters of one tensor)."""
    alone = move.ndim == 1
    parts = [torch.linalg.vector_norm(slope if alone else move @ slope, ord=order, dim=1) for slope in slopes]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(parts), ord=order, dim=0)
    return move.abs() * norms if alone else norms


def _vectorised(network: Network, one: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, moves: Tensor) -> Tensor:
    try:
        found: Tensor = vmap(one, randomness="different")(inputs, moves)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RefusedError(
            f"directed: {type(network.module).__name__} cannot be differentiated one example at a time ({error}); "
            "use layers='last', which does not differentiate"
        ) from error
    return found


def _in_chunks(part: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, moves: Tensor, chunk: int) -> Tensor:
    pieces = range(0, max(1, math.ceil(len(inputs) / chunk)))
    return torch.cat([part(inputs[k * chunk : (k + 1) * chunk], moves[k * chunk : (k + 1) * chunk]) for k in pieces])
