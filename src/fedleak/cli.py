"""The command line. Every command is a thin layer over the library; torch is imported only when it is needed.

Exit codes: 0 fine; 1 a trial failed or the program broke; 2 bad usage or bad input; 3 a gate was crossed (and 130,
as everywhere, where Ctrl-C stopped it). With --json exactly one JSON document goes to stdout, also where something went
wrong; everything else goes to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedleak.commands.options import AllowCode, Data, Device, Executor, Jobs, Json, Quiet, Set

__all__ = ["app", "main"]

app = typer.Typer(
    name="fedleak",
    help="Measure what a federated-learning deployment leaks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from fedleak import __version__

        print(f"fedleak {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def audit(
    spec: Annotated[
        Path | None, typer.Argument(help="A specification (TOML). Without one: the built-in default audit.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/<name of the spec>.")] = None,
    device: Device = "auto",
    seed: Annotated[int | None, typer.Option(min=0, help="Run with this one seed.")] = None,
    jobs: Jobs = None,
    executor: Executor = "local",
    changes: Set = None,
    fail_above: Annotated[
        list[str] | None, typer.Option("--fail-above", help="METRIC=VALUE: exit 3 if a gated row exceeds it.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit file for a CI system.")] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Simulate a federation, attack what its server sees, and write one page that says what was recovered."""
    from fedleak.commands.audit import audit_command

    raise typer.Exit(
        audit_command(
            spec,
            out=out,
            device=device,
            seed=seed,
            jobs=jobs,
            executor=executor,
            changes=changes or [],
            gates=fail_above or [],
            junit=junit,
            data=data,
            allow_code=allow_code,
            quiet=quiet,
            as_json=as_json,
        )
    )


@app.command()
def attack(
    transcript: Annotated[Path, typer.Argument(help="A transcript folder (a recording of what the server saw).")],
    name: Annotated[str, typer.Option("--attack", help="Which attack; `fedleak list attacks` shows all.")],
    changes: Set = None,
    model: Annotated[str | None, typer.Option(help="module:factory of your own network; needs --allow-code.")] = None,
    allow_code: AllowCode = False,
    batchnorm: Annotated[
        str, typer.Option(help="Statistics that the clients' BatchNorm used: batch (training) or running (eval mode).")
    ] = "batch",
    input_shape: Annotated[
        str | None, typer.Option("--input-shape", help="C,H,W of a picture, where the recording does not say it.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="How many classes, where the recording is wrong.")] = None,
    known: Annotated[
        list[str] | None,
        typer.Option("--known", metavar="NAME=VALUE", help="What the server knows and the recording does not say."),
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="The folder of the truth (truths/<hash> of a run), to judge the result.")
    ] = None,
    confidence: Annotated[
        bool, typer.Option(help="Without --truth: run another start and noise, to say how far to believe a picture.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Where to write the result. Default: runs/attack-<hash>.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the starting points that the attack draws.")] = 0,
    device: Device = "auto",
    data: Data = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one attack on a recorded transcript."""
    from fedleak.commands.attack import attack_command

    raise typer.Exit(
        attack_command(
            transcript,
            name,
            changes=changes or [],
            model=model,
            allow_code=allow_code,
            batchnorm=batchnorm,
            input_shape=input_shape,
            classes=classes,
            known=known or [],
            truth=truth,
            sure=confidence,
            out=out,
            seed=seed,
            device=device,
            data=data,
            quiet=quiet,
            as_json=as_json,
        )
    )


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Argument(help="PAPER/TABLE, for instance dlm/table1.")] = None,
    scale: Annotated[str, typer.Option(help="smoke or full; `fedleak list tables` says which have others.")] = "smoke",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    panel: Annotated[list[str] | None, typer.Option(help="Only this part of the table; may be repeated.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only what has this value: method=prior, E=10 or E=[1,5]. May be repeated; all must hold."),
    ] = None,
    changes: Set = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/reproduce/PAPER-TABLE-SCALE.")] = None,
    device: Device = "auto",
    jobs: Jobs = None,
    executor: Executor = "local",
    list_: Annotated[bool, typer.Option("--list", help="List the tables.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the experiment behind a published table and print the paper's numbers beside ours."""
    from fedleak.commands.reproduce import reproduce_command

    raise typer.Exit(
        reproduce_command(
            None if list_ else table,
            scale=scale,
            seeds=seeds,
            panels=panel or [],
            only=only or [],
            changes=changes or [],
            data=data,
            out=out,
            device=device,
            jobs=jobs,
            executor=executor,
            quiet=quiet,
            as_json=as_json,
        )
    )


@app.command("list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="attacks, defenses, protocols, datasets, models, metrics or tables.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List attacks, defenses, protocols, data sets, models, metrics and published tables."""
    from fedleak.commands.catalog import list_command

    raise typer.Exit(list_command(kind, as_json=as_json))


@app.command()
def show(
    kind: Annotated[str, typer.Argument(help="attack, defense, protocol, dataset, model, metric, table or spec.")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    as_json: Json = False,
) -> None:
    """Show one component: what it sees, needs and guarantees, and its parameters."""
    from fedleak.commands.catalog import show_command

    raise typer.Exit(show_command(kind, name, as_json=as_json))


@app.command()
def check(
    spec: Annotated[Path, typer.Argument(help="A specification (TOML).")],
    changes: Set = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Check a specification: all problems at once, nothing is run."""
    from fedleak.commands.check import check_command

    raise typer.Exit(check_command(spec, changes=changes or [], allow_code=allow_code, as_json=as_json))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Build report.html again from the rows of a run."""
    from fedleak.commands.report import report_command

    raise typer.Exit(report_command(run, as_json=as_json))


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="Which benchmark. Without one: list them.")] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Compare the speed of fedleak's engines with that of their rivals on this machine, in one run."""
    from fedleak.commands.bench import bench_command

    raise typer.Exit(bench_command(name, device=device, as_json=as_json))


def main() -> None:
    """Entry point: a user's mistake is one message and exit code 2, never a traceback."""
    from fedleak.commands.ending import ending

    sys.exit(ending(app, sys.argv[1:]))


if __name__ == "__main__":
    main()
