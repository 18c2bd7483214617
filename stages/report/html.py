"""The HTML page: the context of the template, and the template's helpers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from permafrost.stages.report.about import how_made
from permafrost.stages.report.alignment import AlignmentCurve
from permafrost.stages.report.attention_maps import MapGroup, words
from permafrost.stages.report.canvas import InlineSvg, shortened
from permafrost.stages.report.cells import CellResult, TaskCorpus
from permafrost.stages.report.chance import OF_CLASSES
from permafrost.stages.report.choices import choice_fields, choice_rows, what_was_chosen
from permafrost.stages.report.claims import ClaimResult, claim_text, interval_text
from permafrost.stages.report.clean import clean_table
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.controls import control_findings
from permafrost.stages.report.costs import CostRow, Extraction
from permafrost.stages.report.data_table import are_questions, data_rows
from permafrost.stages.report.entries import (
    DASH,
    hundredths,
    magnitude,
    p_text,
    seconds,
    share,
    signed,
)
from permafrost.stages.report.errors import TaskErrors
from permafrost.stages.report.graph_picture import TYPE_NAMES, icon
from permafrost.stages.report.layers import LayerCurve, layer_tables
from permafrost.stages.report.maps import TaskMap
from permafrost.stages.report.markup import PlainTable
from permafrost.stages.report.page_files import PARTS, STYLE, TEMPLATE, asset
from permafrost.stages.report.paired import tested_text
from permafrost.stages.report.pretraining import Pretraining
from permafrost.stages.report.probes import Probe
from permafrost.stages.report.subgraphs import GraphExample
from permafrost.stages.report.tables import ResultsTable
from permafrost.stages.report.token_summary import (
    TaskSummary,
    parts_of_speech_table,
    word_classes_table,
)
from permafrost.stages.report.tokens import KINDS
from permafrost.stages.report.weighed_text import Example, pieces_html

EXPERIMENT = "experiment"
"""The provenance entry with the experiment's name. A report may be of several of its runs, so no command is
shown but those that list them."""
_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")


@dataclass(frozen=True)
class Page:
    """The content of a page."""

    config: ReportConfig
    finding: str
    """The result in one sentence."""
    claims: Sequence[ClaimResult]
    results: Sequence[CellResult]
    table: ResultsTable
    correlations: PlainTable
    """Of methods on graded pairs."""
    on_test: PlainTable
    """What choosing the epoch on test would have given."""
    corpora: Mapping[str, TaskCorpus]
    svgs: Mapping[str, InlineSvg]
    """Pictures by the name of the figure, as in the folder `figures`."""
    layer_curves: Sequence[LayerCurve]
    probes: Sequence[Probe]
    pretrainings: Sequence[Pretraining]
    attention_maps: Sequence[MapGroup]
    maps: Sequence[TaskMap]
    chosen: Sequence[Example]
    """Texts that the config names, with token weights."""
    examples: Sequence[Example]
    attended: Sequence[Example]
    attention_recipe: str
    aligned: Sequence[AlignmentCurve]
    graph_examples: Sequence[tuple[GraphExample, Sequence[Markup]]]
    """Each with a drawing of each of its graphs."""
    errors: Sequence[TaskErrors]
    residuals: Sequence[PlainTable]
    weighed: Sequence[TaskSummary]
    costs: Sequence[CostRow]
    extractions: Sequence[Extraction]
    provenance: Mapping[str, str]


def render(page: Page) -> str:
    """The whole HTML document; it is self-contained."""
    findings = control_findings(page.table)
    choices = choice_rows(page.results)
    named = page.table.chance_words
    varied, settled = choice_fields(choices)
    context: dict[str, Any] = {
        "style": Markup(asset(STYLE)),
        "title": page.config.title,
        "finding": page.finding,
        "claims": page.claims,
        "description": prose(page.config.description),
        "axis": page.config.x_axis,
        "table": page.table,
        "methods": page.table.of_role("method"),
        "baselines": page.table.of_role("baseline"),
        "controls": page.table.of_role("control"),
        "alpha": f"{page.table.alpha:g}",
        "has_chance": named is not None,
        "chance": named or OF_CLASSES,
        "has_classes": page.table.has_classes,
        "clean": clean_table(page.results, page.table),
        "correlations": page.correlations,
        "on_test": page.on_test,
        "how_made": how_made(page.results),
        "n_seeds": len({r.cell.seed for r in page.results}),
        "seeds": sorted({r.cell.seed for r in page.results}),
        "data": data_rows(page.table.columns, page.corpora),
        "has_questions": are_questions(page.corpora),
        "findings": findings,
        "above": [f for f in findings if not f.at_chance and f.entry.mean > f.chance],
        "choices": choices,
        "what_was_chosen": what_was_chosen(choices),
        "choice_fields": varied,
        "settled": settled,
        "metric_svg": page.svgs["metric"],
        "learning_svg": page.svgs.get("learning_curves"),
        "layers_svg": page.svgs.get("layer_curves"),
        "pretraining_svg": page.svgs.get("pretraining"),
        "by_layer_svg": page.svgs.get("pretraining_by_layer"),
        "elsewhere_svg": page.svgs.get("pretraining_elsewhere"),
        "summary_svg": page.svgs.get("token_summary"),
        "layer_tables": layer_tables(page.layer_curves),
        "probes": [(probe, page.svgs[probe.figure]) for probe in page.probes],
        "pretrainings": page.pretrainings,
        "attention_maps": [(group, page.svgs[group.figure]) for group in page.attention_maps],
        "maps": [(task_map, page.svgs[task_map.figure]) for task_map in page.maps],
        "n_intervals": sum(len(s.entries) for s in page.table.standings),
        "level": f"{page.config.bootstrap.level:.0%}",
        "errors": page.errors,
        "residuals": page.residuals,
        "chosen": page.chosen,
        "examples": page.examples,
        "attended": page.attended,
        "attention_recipe": page.attention_recipe,
        "aligned": page.aligned,
        "aligned_svg": page.svgs.get("alignment"),
        "graph_examples": [
            (example, list(zip(example.graphs, drawings, strict=True)))
            for example, drawings in page.graph_examples
        ],
        "chosen_graphs": [
            task
            for task in page.config.graphs_of
            if any(example.task == task for example, _ in page.graph_examples)
        ],
        "graph_types": TYPE_NAMES,
        "weighed": page.weighed,
        "word_classes": [
            table
            for task in page.weighed
            for table in (word_classes_table(task), parts_of_speech_table(task))
            if table.rows
        ],
        "kinds": KINDS,
        "costs": page.costs,
        "extractions": page.extractions,
        "levels": ("¼× or less", "½×", "1× = uniform", "2×", "4×", "8×", "16× or more"),
        "provenance": {k: v for k, v in page.provenance.items() if k != EXPERIMENT},
        "experiment": page.provenance.get(EXPERIMENT),
        "results": page.results,
    }
    return _template().render(context)


@cache
def _template() -> Template:
    """The page's template: to compile it and its parts takes as long as to fill them in."""
    environment = Environment(
        loader=DictLoader({name: asset(name) for name in PARTS}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        hundredths=lambda value: DASH if value is None else hundredths(value),
        share=share,
        signed=signed,
        signed_or_dash=lambda value: DASH if value is None else signed(value),
        interval_text=interval_text,
        p_value=p_text,
        tested_text=tested_text,
        claim_text=claim_text,
        shortened=shortened,
        seconds=seconds,
        extent=_extent,
        known=lambda n: DASH if n is None else f"{n:,}",
        magnitude=lambda values: DASH.join(dict.fromkeys(map(magnitude, sorted(values)))),
        pieces=pieces_html,
        icon=icon,
        words=words,
        with_code=_with_code,
        svg=lambda drawn: drawn.markup,
    )
    return environment.from_string(asset(TEMPLATE))


def _extent(values: tuple[int, int] | None) -> str:
    """The smallest and the largest number, or one if they are equal."""
    return DASH if values is None else DASH.join(f"{n:,}" for n in sorted(set(values)))


def prose(text: str) -> Markup:
    """HTML of the text. Everything in it is escaped, so no tag in it is interpreted."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return Markup("\n").join(_block(block) for block in blocks)


def _block(block: str) -> Markup:
    lines = [line.strip() for line in block.splitlines()]
    if all(line.startswith("- ") for line in lines):
        items = Markup("").join(Markup("<li>{}</li>").format(_inline(line[2:])) for line in lines)
        return Markup("<ul>{}</ul>").format(items)
    return Markup("<p>{}</p>").format(_inline(" ".join(lines)))


def _inline(text: str) -> Markup:
    """Convert code spans and bold text; code spans first, so that asterisks inside them are kept."""
    return _with_code(
        text, lambda part: Markup(_BOLD.sub(r"<strong>\1</strong>", str(escape(part))))
    )


def _with_code(text: str, other: Callable[[str], Markup] = escape) -> Markup:
    """Convert code spans, and what lies between them by `other`."""
    parts = _CODE.split(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else other(part)
        for i, part in enumerate(parts)
    )
