"""How results show themselves in a notebook: pictures and numbers as HTML, without a file and without a script.

    class Reconstruction:
        def _repr_html_(self) -> str:
            return finding_html(self)

Nothing here knows fedleak's types; it asks for the attributes that they have. PIL is imported when a picture is drawn.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["figure", "finding_html", "judgement_html", "picture_url", "row_html"]

SHOWN = 16
"""Pictures of one victim; of more than that a notebook is no gallery."""


def picture_url(picture: Any) -> str:
    """Pixels (C, H, W) in [0, 1] as a data URL; what is outside is clipped, what is not finite is black."""
    from PIL import Image

    levels = (picture.detach().cpu().float().nan_to_num(nan=0.0).clamp(0, 1) * 255).round().byte()
    array = levels[0].numpy() if len(levels) != 3 else levels.permute(1, 2, 0).contiguous().numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def figure(picture: Any, caption: str = "", alt: str = "recovered picture") -> str:
    """One picture with what is said under it."""
    return (
        f'<figure style="display:inline-block;margin:4px"><img alt="{html.escape(alt)}" src="{picture_url(picture)}" '
        f'style="height:96px;image-rendering:pixelated"><figcaption>{html.escape(caption)}</figcaption></figure>'
    )


def finding_html(finding: Any) -> str:
    """What an attack found: for every victim its pictures, its label counts, or that its model was imitated."""
    kind = type(finding).__name__
    if not finding.victims:
        return f"<p>{html.escape(kind)}: no victims</p>"
    return "".join(_victim(victim) for victim in finding.victims)


def _victim(victim: Any) -> str:
    title = f"<b>{html.escape(victim.sender)}</b>, round {victim.round}"
    if victim.status not in ("ok", "diverged"):
        return f"<p>{title}: {html.escape(victim.status)}: {html.escape(victim.reason)}</p>"
    said = [title]
    if victim.status != "ok":
        said.append(html.escape(f"{victim.status}: {victim.reason}"))
    if math.isfinite(victim.objective):
        said.append(f"objective {victim.objective:.3g}")
    head = f"<p>{'; '.join(said)}</p>"
    pictures = getattr(victim, "inputs", None)
    if pictures is not None:
        labels = getattr(victim, "labels", None)
        captions = ["" if labels is None else f"label {int(label)}" for label in ([] if labels is None else labels)]
        captions = captions or [""] * len(pictures)
        shown = "".join(figure(one, text) for one, text in zip(pictures[:SHOWN], captions[:SHOWN], strict=True))
        return head + shown + _rest(len(pictures))
    counts = getattr(victim, "counts", None)
    if counts is not None:
        cells = {str(label): str(int(count)) for label, count in enumerate(counts) if int(count)}
        return head + _table(["label", "examples"], list(cells.items()))
    return f"{head}<p>an imitation of its model</p>"


def judgement_html(judged: Any) -> str:
    """Scores beside what somebody reaches who saw nothing, then every original beside what was made of it."""
    rows = []
    for metric, values in judged.scores.items():
        nulls = {name: scores[metric] for name, scores in judged.baselines.items() if metric in scores}
        beside = ", ".join(f"{name} {_mean(found)}" for name, found in nulls.items())
        rows.append((metric, _mean(values), str(len(values)), beside))
    rows.extend((metric, "", "", why) for metric, why in judged.unavailable.items())
    table = _table(["metric", "mean", "examples", "who saw nothing"], rows)
    pairs = zip(judged.original[:SHOWN], judged.reconstruction[:SHOWN], strict=True)
    shown = "".join(figure(one, "original", "private picture") + figure(two, "recovered") for one, two in pairs)
    return table + shown + _rest(len(judged.original))


def row_html(row: Any) -> str:
    """One row of a run."""
    cells = [(name, str(value)) for name, value in row.where.items()]
    cells.append(("status", row.status if not row.reason else f"{row.status}: {row.reason}"))
    cells.extend((metric, f"{_mean(values)} ({len(values)})") for metric, values in row.scores.items())
    return _table(["", ""], cells)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{top}</tr>' if top else ''}{body}</table>"


def _mean(values: Sequence[float] | Mapping[str, float]) -> str:
    return f"{sum(values) / len(values):.3g}" if isinstance(values, Sequence) and values else ""


def _rest(count: int) -> str:
    return f"<p>and {count - SHOWN} more</p>" if count > SHOWN else ""
