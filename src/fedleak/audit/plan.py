"""From a specification to what must run: federations, and trials on them, each named by the hash of what produces it.

A hash covers the resolved parameters, the data's content, a revision per component and the device kind. Library
versions are recorded with the rows but not hashed: an upgrade of numpy does not throw a week's work away.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedleak.audit.registry import registry
from fedleak.audit.spec import Arm, AttackChoice, Point, Spec
from fedleak.components import resolved
from fedleak.data import split_manifest
from fedleak.factories import made_by
from fedleak.files import digest
from fedleak.metrics import NotAvailable, default_threshold, load_lpips
from fedleak.seeding import Seeds

__all__ = ["REVISION", "FederationJob", "Plan", "Trial", "make_plan"]

REVISION = 1
"""Of the runner itself: raised when the same parameters would give other rows."""


@dataclass(frozen=True)
class FederationJob:
    """One federation to simulate. Trials that share it run it once."""

    key: str
    point: Point
    arm: Arm
    seed: int
    split: Mapping[str, Any]
    """The manifest of the split: who holds what, with its hash."""
    told: frozenset[str] = frozenset()
    """Keys of `where` by which people tell it from the others of its protocol in this plan."""

    def label(self) -> str:
        """For people."""
        named = {path: value for path, value in self.where().items() if not path.startswith("attacks.")}
        return _label(named, self.told)

    def where(self) -> dict[str, Any]:
        """The part of a row's `where` that the federation decides."""
        return {
            "dataset": self.point.data.name,
            "model": self.point.model.name,
            "protocol": self.point.protocol_name,
            "defense": self.arm.label,
            "seed": self.seed,
            **self.point.where_of(self.arm),
        }


@dataclass(frozen=True)
class Trial:
    """One attack on one federation; `choice` None stands for the federation's own utility."""

    key: str
    federation: FederationJob
    choice: AttackChoice | None
    metrics: tuple[str, ...]
    threshold: float
    time_limit: float | None = None

    def where(self) -> dict[str, Any]:
        if self.choice is None:
            return {**self.federation.where(), "attack": "none"}
        preset = getattr(self.choice.attack, "preset", None)
        named = {"attack": self.choice.name, **({} if preset is None else {"preset": preset})}
        return {**self.choice.own(self.federation.where()), **named, **self.choice.extra}

    def label(self) -> str:
        """For people."""
        federation = _label(self.where(), self.federation.told)
        if self.choice is None:
            return federation
        recipe = [f"{path} = {value}" for path, value in self.choice.extra.items()]
        return ", ".join([federation, self.choice.name, *recipe])


def _label(named: Mapping[str, Any], told: frozenset[str]) -> str:
    """`none` is the name of no defense, and does not say so."""
    apart = [f"{path} = {value}" for path, value in named.items() if path in told]
    defense = "no defense" if named["defense"] == "none" else named["defense"]
    return ", ".join([f"{named['dataset']} {named['protocol']}", *apart, defense])


@dataclass(frozen=True)
class Plan:
    federations: tuple[FederationJob, ...]
    trials: tuple[Trial, ...]


def _model_identity(point: Point) -> dict[str, Any]:
    """A built-in model is its name, arguments and revision; a user's own is also its source, as far as it is known."""
    factory = point.model.factory
    if factory is None:
        return {
            "name": point.model.name,
            "arguments": dict(point.model.arguments),
            "revision": registry("models")[point.model.name].revision,
        }
    module = made_by(factory)
    source, parts = _source(factory), {_source(type(part)) for part in module.modules() if not _from_torch(part)}
    # What a function makes is of classes whose code is not the function's.
    more = {"parts": sorted(parts)} if parts - {source} else {}
    return {"name": point.model.name, "source": source, "module": repr(module), **more}


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _from_torch(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "torch"


def _raised(*described: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """Revisions above the first of what has no place of its own in a hash: of data, and of models that the tables of a
    protocol or an attack name. Nothing while there are none, so that what was stored before is found."""
    tables = [one.get(key) for one in described for key in ("server_model", "network")]
    tables += [table for one in described for table in one.get("client_models") or ()]
    names = [str(table.get("name")) for table in tables if isinstance(table, Mapping)]
    every = {**{name: registry("models").get(name) for name in names}, **parts}
    above = {name: part.revision for name, part in every.items() if getattr(part, "revision", 1) > 1}
    return {"raised": above} if above else {}


def make_plan(spec: Spec, data_root: Path, device_kind: str) -> Plan:
    """All federations and trials of a specification, in the order of the specification."""
    federations: dict[str, FederationJob] = {}
    trials: dict[str, Trial] = {}
    splits: dict[str, Mapping[str, Any]] = {}
    lacking = _lacking(spec, data_root)
    told = _told(spec)
    for seed in spec.seeds:
        for point in spec.points:
            described = resolved(point.data)
            split_key = digest({"data": described, "seed": seed})
            if split_key not in splits:
                splits[split_key] = split_manifest(point.data, data_root, Seeds(seed).under("data")).as_json()
            for arm in point.arms:
                job = _federation(point, arm, seed, described, splits[split_key], device_kind)
                job = replace(job, told=told[point.protocol_name])
                federations.setdefault(job.key, job)
                for trial in _trials(spec, job, device_kind, lacking):
                    trials.setdefault(trial.key, trial)
    return Plan(tuple(federations.values()), tuple(trials.values()))


def _federation(
    point: Point, arm: Arm, seed: int, data: Mapping[str, Any], split: Mapping[str, Any], device_kind: str
) -> FederationJob:
    identity = {
        "runner": REVISION,
        "device": device_kind,
        "seed": seed,
        "data": dict(data),
        "split": split["hash"],
        "model": _model_identity(point),
        "protocol": {"name": point.protocol_name, "revision": point.protocol.revision, **resolved(point.protocol)},
        "defenses": arm.describe(),
        **_raised(
            resolved(point.protocol),
            data=point.data,
            public=point.data.public,
            source=registry("datasets")[point.data.name],
        ),
    }
    return FederationJob(digest(identity)[:24], point, arm, seed, split)


def _told(spec: Spec) -> dict[str, frozenset[str]]:
    """For each protocol what its points differ in, and the seed where there are several."""
    found: dict[str, frozenset[str]] = {}
    for point in spec.points:
        alike = [other.where for other in spec.points if other.protocol_name == point.protocol_name]
        paths = {path for where in alike for path in where}
        differ = {path for path in paths if len({str(where.get(path)) for where in alike}) > 1}
        found[point.protocol_name] = frozenset(differ | ({"seed"} if len(spec.seeds) > 1 else set()))
    return found


def _lacking(spec: Spec, data_root: Path) -> dict[str, str]:
    """What rows are without: a metric whose weights are missing is measured when they have come."""
    without = "lpips" in spec.metrics and isinstance(load_lpips(data_root), NotAvailable)
    return {"lacking": "lpips"} if without else {}


def _behind(job: FederationJob) -> int:
    """How many images stand behind an attacked update, at the client that has most; 0 where clients send none."""
    if not hasattr(job.point.protocol, "examples"):
        return 0
    held = max((len(part) for part in job.split["clients"].values()), default=0)
    return min(job.point.protocol.examples or held, held)


def _trials(spec: Spec, job: FederationJob, device_kind: str, lacking: Mapping[str, str]) -> list[Trial]:
    point = job.point
    threshold = spec.threshold if spec.threshold is not None else default_threshold(point.data.name, _behind(job))
    found = []
    for choice in (None, *point.attacks):
        identity = {
            "runner": REVISION,
            "device": device_kind,
            "federation": job.key,
            "where": job.where() if choice is None else {**choice.own(job.where()), **choice.extra},
            "attack": None if choice is None else choice.describe(),
            **({} if choice is None else _raised(choice.describe())),
            "metrics": [] if choice is None else list(spec.metrics),
            "threshold": threshold,
            **({} if choice is None else lacking),
        }
        found.append(Trial(digest(identity)[:24], job, choice, spec.metrics, threshold, spec.time_limit))
    return found
