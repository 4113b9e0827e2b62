"""Networks of somebody's own: what makes one, and what of it is trained."""

from __future__ import annotations

import copy
import inspect
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter

from fedleak.errors import RefusedError

__all__ = ["frozen_as_buffers", "made_by", "name_of", "raised", "raised_by_a_network", "takes_nothing"]

OURS = Path(__file__).parent
INSTALLED = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def name_of(factory: Any) -> str:
    """What a network of somebody's own is called in a specification: module:factory."""
    return f"{getattr(factory, '__module__', 'user')}:{getattr(factory, '__qualname__', type(factory).__name__)}"


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


def _line(problem: BaseException) -> traceback.FrameSummary | None:
    """Where it was raised, if in code that is neither fedleak's nor installed; a line in a package that such code asked
    for something counts as the line that asked."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(OURS):
            return None
        if not frame.filename.startswith("<") and not any(file.is_relative_to(place) for place in INSTALLED):
            return frame
    return None


def raised(problem: BaseException) -> str:
    """What somebody's own code raised, and on which line of it."""
    said, line = " ".join(str(problem).split()), _line(problem)
    at = "" if line is None else f" ({Path(line.filename).name}:{line.lineno})"
    return f"{type(problem).__name__}: {said}{at}"


def raised_by_a_network(problem: BaseException) -> bool:
    """Whether it was raised by a network of somebody's own, when it was made or when it was shown a picture."""
    within = {frame.name for frame in traceback.extract_tb(problem.__traceback__)}
    return _line(problem) is not None and bool(within & {made_by.__name__, "_call_impl"})


def frozen_as_buffers(module: nn.Module) -> nn.Module:
    """The network with its parameters of `requires_grad=False` among the buffers: whoever trains it leaves them as they
    are, and whoever reads an update does not look for their gradients. Where there are some it is a copy: the module
    that a factory gives may be one that its author goes on using."""
    if any(isinstance(value, UninitializedParameter) for value in module.parameters()):
        raise RefusedError(
            f"model={type(module).__name__!r}: has lazy layers, whose sizes are not known yet; show the network one "
            "picture before it is returned, or give the layers their sizes"
        )
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
