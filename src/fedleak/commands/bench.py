"""`fedleak bench`: ratios against rivals, measured in one run on this machine."""

from __future__ import annotations

from fedleak.audit.device import choose_device
from fedleak.audit.registry import did_you_mean
from fedleak.bench import BENCHES
from fedleak.commands.output import print_json, say
from fedleak.errors import RefusedError

__all__ = ["bench_command"]


def bench_command(name: str | None, *, device: str, as_json: bool) -> int:
    if name is None:
        print_json(sorted(BENCHES)) if as_json else say("\n".join(sorted(BENCHES)))
        return 0
    if name not in BENCHES:
        raise RefusedError(f"bench={name!r}: choose one of {', '.join(BENCHES)}{did_you_mean(name, BENCHES)}")
    result = BENCHES[name](choose_device(device))
    if as_json:
        print_json(result.as_json())
        return 0
    say(f"{result.name} on {result.device}: {dict(result.conditions)}")
    for rival, ratio in result.ratios.items():
        say(f"  {rival}: {'not measured' if ratio is None else _against(ratio)}")
    for what, seconds in result.seconds.items():
        say(f"  {what}: {seconds:.3g} s")
    say(f"  peak memory {result.peak_memory / 2**20:.0f} MiB; arithmetic floor {result.floor_seconds:.3g} s")
    return 0


def _against(ratio: float) -> str:
    """A ratio is the rival's seconds over ours."""
    return f"{ratio:.2f} times faster" if ratio >= 1 else f"{1 / ratio:.2f} times slower"
