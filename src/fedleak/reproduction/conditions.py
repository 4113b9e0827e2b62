"""Whether a row was made under the conditions of its table, or under others that `--set` asked for.

The paper's numbers stand beside the first alone. Other seeds, and parts of what a table has (one attack of its list,
one value of its sweep), are no other conditions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedleak.audit.plan import FederationJob, Trial
from fedleak.audit.rows import Row
from fedleak.audit.spec import Spec
from fedleak.components import resolved

__all__ = ["under_other_conditions"]


def under_other_conditions(rows: Sequence[Row], ran: Spec, own: Spec) -> frozenset[str]:
    """The trials among `rows`, made by `ran`, that the table's `own` specification does not hold."""
    known = {identity for _, identity in _conditions(own)}
    here = list(_conditions(ran))
    found: set[str] = set()
    for row in rows:
        # What is swept stands in `where`, so of entries that all fit, the one that says most is the row's.
        fitting = [(len(where), identity) for where, identity in here if where.items() <= row.where.items()]
        if not fitting or max(fitting)[1] not in known:
            found.add(row.trial)
    return frozenset(found)


def _conditions(spec: Spec) -> Iterator[tuple[Mapping[str, Any], str]]:
    """What the rows of every trial say of it, but for the seed, and all that it was made of."""
    for point in spec.points:
        model = {"name": point.model.name, **point.model.arguments}
        for arm in point.arms:
            job = FederationJob("", point, arm, 0, {})
            for choice in (None, *point.attacks):
                where = Trial("", job, choice, (), 0.0).where()
                made_of = {
                    "data": resolved(point.data),
                    "model": model,
                    "protocol": {"name": point.protocol_name, **resolved(point.protocol)},
                    "defenses": arm.describe(),
                    "attack": None if choice is None else choice.describe(),
                    "threshold": spec.threshold,
                }
                del where["seed"]
                yield where, json.dumps(made_of, sort_keys=True, default=str)
