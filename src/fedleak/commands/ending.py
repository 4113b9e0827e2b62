"""How a command ends: its exit code, one message for a person and, with --json, one document for a script.

With --json a command that could not do its work prints {"error": ..., "exit_code": ...} on stdout, and "problems" (path
and message of each) where a specification has some. A command prints its own document last, so there are never two.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer

from fedleak.errors import FedleakError, SpecError
from fedleak.files import disk_is_full

__all__ = ["STOPPED", "ending"]

STOPPED = 130
"""What a shell calls a command that Ctrl-C ended: 128 and the number of the signal."""
GO_ON = "what was finished is kept, run the same command again to go on"
USAGE: Any = typer.BadParameter.__mro__[2]
"""click's ClickException, the base of what is wrong with the usage. Newer typers bring click under their own name."""
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)


def ending(run: Callable[..., Any], arguments: list[str]) -> int:
    """Run the command line and return its exit code. No traceback for what a user or a full disk did."""
    as_json = "--json" in arguments
    code, said, more = _ending(run, as_json)
    if said:
        print(f"fedleak: {said}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": said, "exit_code": code, **more}, indent=1))
    return code


def _ending(run: Callable[..., Any], as_json: bool) -> tuple[int, str, dict[str, Any]]:
    """(exit code, what is to be said about it, what a script wants to know besides)."""
    try:
        # Typer says what is wrong with the usage itself, in a box on stderr; a script gets it in the document.
        returned = run(standalone_mode=not as_json)
        code = returned if isinstance(returned, int) else 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except SpecError as problem:
        return 2, str(problem), {"problems": [{"path": p.path, "message": p.message} for p in problem.problems]}
    except FedleakError as problem:
        return 2, str(problem), {}
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    except BrokenPipeError:
        code = 1
    except OSError as problem:
        what = f"{problem.filename}: " if problem.filename else ""
        if disk_is_full(problem):
            return 1, f"{what}cannot be written ({problem.strerror}); make room: {GO_ON}", {}
        if problem.errno in CLOSED:
            return 2, f"{what}cannot be used ({problem.strerror}); choose another place", {}
        return _broke(problem)
    except Exception as problem:
        if isinstance(problem, USAGE):
            return problem.exit_code, problem.format_message(), {}
        return _broke(problem)
    return (code, f"stopped; {GO_ON}", {}) if code == STOPPED else (code, "", {})


def _broke(problem: Exception) -> tuple[int, str, dict[str, Any]]:
    """A mistake of fedleak's own: everything that helps to find it goes to stderr. Of a mistake in somebody's own
    network its author wants to know the line."""
    from fedleak.audit.device import out_of_memory
    from fedleak.factories import raised, raised_by_a_network

    if said := out_of_memory(problem):
        return 1, f"out of memory: {said}; take a smaller network, smaller pictures or fewer at once", {}
    if raised_by_a_network(problem):
        return 2, f"model: your own code raised {raised(problem)}", {}
    traceback.print_exception(problem, file=sys.stderr)
    return 1, f"this should not have happened ({type(problem).__name__}: {problem}); {GO_ON}", {}
