"""The page: what goes into the template, and the template's own small helpers."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import pyarrow.compute as pc
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from stages.report.canvas import InlineSvg, shortened
from stages.report.cells import CellResult
from stages.report.config import CurveAxis, ReportConfig
from stages.report.findings import choice_rows, control_findings
from stages.report.layer_curves import LayerCurve, layer_tables
from stages.report.prose import prose
from stages.report.tables import DASH, ResultsTable, hundredths
from stages.report.token_weights import MAX_TOKENS, Example, Piece, TaskCorpus

_TEMPLATE, _STYLE = "template.html.j2", "style.css"
COMMAND = "command"
"""The entry of the provenance that is shown as the command that makes the report again."""


@dataclass(frozen=True)
class Page:
    """All that a page shows."""

    config: ReportConfig
    results: Sequence[CellResult]
    table: ResultsTable
    corpora: Mapping[str, TaskCorpus]
    metric_svg: InlineSvg
    learning_svg: InlineSvg | None
    layers_svg: InlineSvg | None
    layer_curves: Sequence[LayerCurve]
    examples: Sequence[Example]
    provenance: Mapping[str, str]


def render(page: Page) -> str:
    """The whole HTML document; it refers to nothing outside itself."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        hundredths=lambda value: DASH if value is None else hundredths(value),
        shortened=shortened,
        pieces=_pieces_html,
        svg=lambda drawn: Markup(drawn.markup),
    )
    findings = control_findings(page.table)
    choices = choice_rows(page.results)
    context: dict[str, Any] = {
        "style": Markup(_asset(_STYLE)),
        "title": page.config.title,
        "description": prose(page.config.description),
        "is_curve": isinstance(page.config.x_axis, CurveAxis),
        "axis": page.config.x_axis,
        "table": page.table,
        "methods": page.table.of_role("method"),
        "controls": page.table.of_role("control"),
        "has_majority": page.table.has_majority,
        "is_trained": any(r.metrics.n_parameters for r in page.results),
        "n_seeds": len({r.cell.seed for r in page.results}),
        "seeds": sorted({r.cell.seed for r in page.results}),
        "data": _data_rows(page),
        "findings": findings,
        "leaks": [f for f in findings if not f.at_chance and f.entry.mean > f.majority],
        "choices": choices,
        "choice_fields": list(dict.fromkeys(field for row in choices for field in row.choices)),
        "metric_svg": page.metric_svg,
        "learning_svg": page.learning_svg,
        "layers_svg": page.layers_svg,
        "layer_tables": layer_tables(page.layer_curves),
        "examples": page.examples,
        "max_tokens": MAX_TOKENS,
        "levels": ("¼× or less", "½×", "1× = uniform", "2×", "4×", "8×", "16× or more"),
        "provenance": {k: v for k, v in page.provenance.items() if k != COMMAND},
        "command": page.provenance.get(COMMAND, "permafrost run EXPERIMENT.yaml"),
        "results": page.results,
    }
    return environment.from_string(_asset(_TEMPLATE)).render(context)


def page_digest() -> str:
    """Digest of the template and the style sheet: the part of a report's code that is not Python."""
    content = "\0".join(_asset(name) for name in (_TEMPLATE, _STYLE))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@cache
def _asset(name: str) -> str:
    return resources.files("stages.report").joinpath(name).read_text(encoding="utf-8")


def _data_rows(page: Page) -> list[dict[str, Any]]:
    """Per task: unique texts, examples by split, classes."""
    rows: list[dict[str, Any]] = []
    for task in dict.fromkeys(column.task for column in page.table.columns):
        corpus = page.corpora[task]
        split = corpus.examples.column("split")
        sizes = {s: pc.sum(pc.equal(split, s)).as_py() or 0 for s in ("train", "dev", "test")}
        labels = ", ".join(corpus.label_names) or DASH
        rows.append({"task": task, "n_texts": len(corpus.texts), "sizes": sizes, "labels": labels})
    return rows


def _pieces_html(pieces: Sequence[Piece]) -> Markup:
    """Tokens as one run of text, each with its level; pieces of one word touch."""
    parts: list[Markup] = []
    for i, piece in enumerate(pieces):
        if i and not piece.glued:
            parts.append(Markup(" "))
        parts.append(
            Markup('<span class="t w{}" title="{:.2g}× uniform">{}</span>').format(
                piece.level, piece.ratio, shortened(piece.text, 60)
            )
        )
    return Markup("").join(parts)
