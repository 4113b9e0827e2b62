"""Networks of somebody's own: what makes one, and what of it is trained."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from fedleak.errors import RefusedError

__all__ = ["frozen_as_buffers", "made_by", "takes_nothing"]


def takes_nothing(factory: Callable[..., Any], name: str = "") -> None:
    """Refuses what cannot be called without arguments: a class that wants some, or the network itself."""
    name = name or getattr(factory, "__qualname__", type(factory).__name__)
    wants = "it is a network, which takes pictures" if isinstance(factory, nn.Module) else ""
    try:
        inspect.signature(factory).bind()
    except TypeError as problem:
        wants = wants or str(problem)
    except ValueError:
        pass  # written in C, and does not say what it takes
    if wants:
        raise RefusedError(
            f"model={name!r}: is called without arguments to make the network ({wants}); give a function or a class "
            "that needs none (lambda: Net(10)), not the network itself"
        )


def made_by(factory: Callable[[], nn.Module]) -> nn.Module:
    """A user's own network, if that is what the factory makes. What goes wrong inside is for its author to see."""
    takes_nothing(factory)
    made: Any = factory()
    if not isinstance(made, nn.Module):
        name = getattr(factory, "__qualname__", type(factory).__name__)
        raise RefusedError(f"model={name!r}: makes a {type(made).__name__}, not a torch.nn.Module; return the network")
    return made


def frozen_as_buffers(module: nn.Module) -> nn.Module:
    """The network with its parameters of `requires_grad=False` among the buffers: whoever trains it leaves them as they
    are, and whoever reads an update does not look for their gradients. Where there are some it is a copy: the module
    that a factory gives may be one that its author goes on using."""
    frozen = [value for value in module.parameters() if not value.requires_grad]
    if len(frozen) == sum(1 for _ in module.parameters()):
        raise RefusedError(
            f"model={type(module).__name__!r}: every parameter is frozen, so nothing is learned and no update says "
            "anything; leave at least one with requires_grad=True"
        )
    if not frozen:
        return module
    module = copy.deepcopy(module)
    for part in module.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            if not value.requires_grad:
                del part._parameters[name]
                part.register_buffer(name, value.detach())
    return module
