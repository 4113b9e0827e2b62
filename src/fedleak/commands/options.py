"""The options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AllowCode", "Data", "Device", "Executor", "Jobs", "Json", "Quiet", "Set"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Data = Annotated[str | None, typer.Option("--data", help="Data folder. Default: FEDLEAK_DATA, else ./data.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Change one value: key.path=value. May be repeated.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Allow a module:factory of your own to be imported.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Worker processes. Default: one per core.")]
Executor = Annotated[
    str, typer.Option(help="Where the workers run: local, or ray (RAY_ADDRESS, else a private cluster).")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
