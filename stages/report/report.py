"""Write a report: an HTML page, the same numbers as data, and pictures to reuse."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.metrics.predictions import PREDICTIONS
from permafrost.stages.metrics.records import CHOSEN_WEIGHTS
from permafrost.stages.report import canvas
from permafrost.stages.report.alignment import (
    alignment_curves,
    alignment_description,
    alignment_figure,
)
from permafrost.stages.report.attention import AttentionRows, attention_examples
from permafrost.stages.report.attention_maps import (
    KeptMap,
    attention_map_description,
    attention_map_figure,
    map_groups,
)
from permafrost.stages.report.cells import Cell, CellResult, TaskCorpus, read_results
from permafrost.stages.report.choices import ChoiceRow, choice_rows, choices_table, settled_table
from permafrost.stages.report.chosen_on_test import chosen_on_test_table
from permafrost.stages.report.claims import (
    ClaimResult,
    claim_results,
    claims_summary,
    claims_table,
)
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.controls import control_findings, controls_table
from permafrost.stages.report.correlations import (
    CellCorrelations,
    cell_correlations,
    correlations_summary,
    correlations_table,
)
from permafrost.stages.report.costs import (
    CostRow,
    Extraction,
    cost_rows,
    costs_table,
    extractions_table,
)
from permafrost.stages.report.curve_claims import read_curves
from permafrost.stages.report.errors import task_errors
from permafrost.stages.report.finding import finding
from permafrost.stages.report.graph_picture import picture, picture_description, standalone
from permafrost.stages.report.html import Page, render
from permafrost.stages.report.layers import (
    LayerTable,
    layer_description,
    layer_figure,
    layer_tables,
    layers_table,
    read_layer_curves,
)
from permafrost.stages.report.learning import learning_curves, learning_description, learning_figure
from permafrost.stages.report.main_figure import main_description, main_figure
from permafrost.stages.report.maps import map_description, map_figure, read_task_maps
from permafrost.stages.report.markup import PlainTable, to_latex, to_markdown
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.palette import extended, marks
from permafrost.stages.report.pretraining import (
    Pretraining,
    PretrainingRun,
    pretraining_description,
    pretraining_figure,
    read_pretrainings,
)
from permafrost.stages.report.pretraining_elsewhere import (
    Elsewhere,
    elsewhere_description,
    elsewhere_figure,
    elsewhere_table,
    read_elsewhere,
)
from permafrost.stages.report.pretraining_layers import (
    by_layer_description,
    by_layer_figure,
    by_layer_table,
)
from permafrost.stages.report.probes import probe_description, probe_figure, read_probes
from permafrost.stages.report.residuals import residual_tables, residuals
from permafrost.stages.report.results_files import (
    cell_intervals,
    results_arrow,
    results_latex,
    results_markdown,
    results_summary,
)
from permafrost.stages.report.subgraphs import graph_examples
from permafrost.stages.report.sweep import SweptCurve
from permafrost.stages.report.tables import ResultsTable, intervals_table, tabulate
from permafrost.stages.report.token_examples import chosen_examples, token_examples
from permafrost.stages.report.token_summary import (
    TaskSummary,
    parts_of_speech_table,
    summaries,
    summary_description,
    summary_figure,
    summary_table,
    token_weights_table,
    word_classes_table,
)
from permafrost.stages.report.tokens import TextTokens, read_tokens, read_weights
from permafrost.stages.report.weighed_text import token_picture
from permafrost.storage.durable import write_durably, write_json
from permafrost.storage.errors import InputError


def write_report(
    config: ReportConfig,
    cells: Sequence[Cell],
    texts: Mapping[str, TaskCorpus],
    tokens: TextTokens,
    provenance: Mapping[str, str],
    folder: Path,
    *,
    layer_curves: pa.Table | None = None,
    probes: pa.Table | None = None,
    probe_captions: Mapping[str, str] | None = None,
    attention_maps: Sequence[KeptMap] = (),
    pretrainings: Sequence[PretrainingRun] = (),
    extractions: Sequence[Extraction] = (),
    attention: AttentionRows | None = None,
    swept: Sequence[SweptCurve] = (),
    gaps: Sequence[str] = (),
    remarks: Sequence[str] = (),
    named_metrics: Mapping[str, str] | None = None,
) -> None:
    """Write report.html, results.parquet, results.md, results.tex, summary.json and figures/*.png; of graphs
    with attention figures/*.svg.

    The page's other tables are in tables.md and tables.tex. If methods have token weights,
    token_summary.parquet has their summary.

    The same input gives the same bytes.

    Args:
        config: title, description and layout.
        cells: results, in the order in which methods and tasks are shown.
        texts: the corpus of every task.
        tokens: gives the tokens of texts by digest, one per token weight.
        provenance: shown unchanged; the entry "experiment" is the experiment's name, by which its runs are
            found.
        folder: created if it does not exist.
        layer_curves: scores by layer, with the columns `LAYER_CURVES`; drawn, tabulated, and written as
            layer_curves.parquet.
        probes: results of other probes, with the columns `PROBE_CURVES`; drawn, tabulated, and written as
            probes.parquet.
        probe_captions: what the figure of each kind of probe shows.
        attention_maps: attention of every token of a text, which some probes keep; drawn.
        pretrainings: pretraining runs, whose curves are drawn.
        extractions: runs of the backbone, whose costs are tabulated.
        attention: stored attention rows, shown for a few texts.
        swept: methods that differ in one setting, for an axis of kind `sweep`.
        gaps: what is missing, one sentence each; printed before the other notes.
        remarks: on the experiment, one sentence each; printed behind the other notes.
        named_metrics: by task, the metric that the experiment asks methods to be compared by.

    Raises:
        InputError: there are no cells, a cell occurs twice, a task has no corpus, a task on the axis has no
            cell, or layer curves or probes are invalid.
        NotFoundError: a result file does not exist.
        CorruptDataError: a result file has invalid content.
        PermafrostError: a metric is not a finite number.
    """
    results = read_results(cells)
    _check_tasks(config, results, texts)
    curves = learning_curves(results)
    table = annotated(
        *(tabulate(results), results, config, curves, extractions),
        named_metrics=named_metrics,
    )
    said = finding(table, config, has_gaps=bool(gaps))
    table = replace(table, notes=(*gaps, *table.notes, *remarks))
    by_layer = () if layer_curves is None else read_layer_curves(layer_curves)
    probed = (
        {} if probes is None else {p.figure: p for p in read_probes(probes, probe_captions or {})}
    )
    curves_by_name = read_curves(list(probed.values()), by_layer)
    claims = claim_results(config.claims, table, config.bootstrap, curves_by_name)
    mapped = {group.figure: group for group in map_groups(attention_maps)}
    pretrained = read_pretrainings(pretrainings)
    elsewhere = read_elsewhere(pretrainings, pretrained)
    maps = {m.figure: m for m in read_task_maps(results, texts)}
    weights = read_weights(results)
    chosen_weights = read_weights(results, CHOSEN_WEIGHTS)
    reading = read_tokens([*weights, *chosen_weights], tokens)
    chosen = chosen_examples(config.weights_of, chosen_weights, reading)
    examples = token_examples(weights, reading, texts, config.n_examples)
    attended = () if attention is None else attention_examples(attention, texts, config.n_examples)
    aligned = alignment_curves(results)
    in_graphs = [
        (example, [picture(graph, picture_description(graph)) for graph in example.graphs])
        for example in graph_examples(results, config, texts)
    ]
    token_table = summary_table(weights, reading)
    weighed = summaries(token_table)
    row_marks = marks(table)
    with canvas.drawing():
        pictures = {"metric": main_figure(config, table, row_marks, swept)}
        if curves:
            pictures["learning_curves"] = learning_figure(curves, row_marks)
        if by_layer:
            all_marks = extended(row_marks, [c.method for c in by_layer])
            pictures["layer_curves"] = layer_figure(by_layer, all_marks)
        for name, probe in probed.items():
            pictures[name] = probe_figure(probe, extended(row_marks, probe.methods))
        for name, group in mapped.items():
            pictures[name] = attention_map_figure(group)
        if pretrained:
            pictures["pretraining"] = pretraining_figure(pretrained)
            pictures["pretraining_by_layer"] = by_layer_figure(pretrained)
        if elsewhere:
            pictures["pretraining_elsewhere"] = elsewhere_figure(elsewhere)
        if aligned:
            pictures["alignment"] = alignment_figure(aligned, row_marks)
        titles: dict[str, Mapping[str, Sequence[str]]] = {}
        for name, task_map in maps.items():
            pictures[name], titles[name] = map_figure(task_map)
        if weighed:
            pictures["token_summary"] = summary_figure(weighed, row_marks)
        if examples:
            pictures["token_weights"] = token_picture(examples[0])
        for number, example in enumerate(chosen, start=1):
            pictures[f"chosen_weights_{number}"] = token_picture(example)
        if attended:
            pictures["attention_rows"] = token_picture(attended[0])
        for name, figure in pictures.items():
            write_durably(folder / "figures" / f"{name}.png", canvas.png(figure))
        descriptions = {
            "metric": main_description(config, table, swept),
            "learning_curves": learning_description(curves),
            "pretraining": pretraining_description(pretrained),
            "pretraining_by_layer": by_layer_description(pretrained),
            "pretraining_elsewhere": elsewhere_description(elsewhere),
            "layer_curves": layer_description(by_layer),
            **{name: probe_description(probe) for name, probe in probed.items()},
            **{name: attention_map_description(group) for name, group in mapped.items()},
            **{name: map_description(task_map) for name, task_map in maps.items()},
            "token_summary": summary_description(weighed),
            "alignment": alignment_description(aligned),
        }
        svgs = {
            name: canvas.svg(pictures[name], f"f{number}", description, titles.get(name))
            for number, (name, description) in enumerate(descriptions.items())
            if name in pictures
        }
    for number, (_, drawings) in enumerate(in_graphs, start=1):
        name = f"graph_{number}.svg"
        write_durably(folder / "figures" / name, standalone(str(drawings[0])).encode())
    intervals = cell_intervals(table.columns, table.standings)
    correlated = cell_correlations(results, texts)
    _write_parquet(
        folder / "results.parquet",
        results_arrow(
            results, intervals, {(c.method, c.task, c.seed): c.values for c in correlated}
        ),
    )
    if layer_curves is not None:
        _write_parquet(folder / "layer_curves.parquet", layer_curves)
    if probes is not None:
        _write_parquet(folder / "probes.parquet", probes)
    if weighed:
        _write_parquet(folder / "token_summary.parquet", token_table)
    write_durably(folder / "results.md", results_markdown(table).encode())
    write_durably(folder / "results.tex", results_latex(table, config.title).encode())
    summary = {"title": config.title, "finding": said, **results_summary(table)}
    if claims:
        summary["claims"] = claims_summary(claims)
    if correlated:
        summary["correlations"] = correlations_summary(correlated)
    write_json(folder / "summary.json", summary)
    costs = cost_rows(results, curves)
    on_test = chosen_on_test_table(results)
    held = residual_tables(residuals(config.residuals, results, texts, config.n_errors))
    others = plain_tables(
        table,
        config.bootstrap.level,
        correlations=correlated,
        on_test=on_test,
        claims=claims,
        residuals=held,
        pretrainings=pretrained,
        elsewhere=elsewhere,
        layers=layer_tables(by_layer),
        weighed=weighed,
        choices=choice_rows(results),
        costs=costs,
        extractions=extractions,
    )
    write_durably(folder / "tables.md", to_markdown(others).encode())
    write_durably(folder / "tables.tex", to_latex(others).encode())
    page = Page(
        config=config,
        finding=said,
        claims=claims,
        results=results,
        table=table,
        correlations=correlations_table(correlated),
        on_test=on_test,
        corpora=texts,
        svgs=svgs,
        layer_curves=by_layer,
        probes=tuple(probed.values()),
        pretrainings=pretrained,
        attention_maps=tuple(mapped.values()),
        maps=tuple(maps.values()),
        chosen=chosen,
        examples=examples,
        attended=attended,
        attention_recipe="" if attention is None else attention.recipe,
        aligned=aligned,
        graph_examples=in_graphs,
        errors=task_errors(
            results, [(c.task, c.metric) for c in table.columns], texts, config.n_errors
        ),
        residuals=held,
        weighed=weighed,
        costs=costs,
        extractions=extractions,
        provenance=provenance,
    )
    write_durably(folder / "report.html", render(page).encode())


def _write_parquet(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_durably(path, buffer.getvalue())


def _check_tasks(
    config: ReportConfig, results: Sequence[CellResult], texts: Mapping[str, TaskCorpus]
) -> None:
    tasks = dict.fromkeys(r.cell.task for r in results)
    answered = {r.cell.task for r in results if (r.cell.folder / PREDICTIONS).exists()}
    without = [task for task in tasks if task in answered and task not in texts]
    if without:
        raise InputError(
            f"there are results on {without} but only texts of {sorted(texts)}; pass their corpora as well"
        )
    config.x_axis.require(tasks)


def plain_tables(
    table: ResultsTable,
    level: float,
    *,
    correlations: Sequence[CellCorrelations],
    on_test: PlainTable,
    claims: Sequence[ClaimResult],
    residuals: Sequence[PlainTable],
    pretrainings: Sequence[Pretraining],
    elsewhere: Sequence[Elsewhere],
    layers: Sequence[LayerTable],
    weighed: Sequence[TaskSummary],
    choices: Sequence[ChoiceRow],
    costs: Sequence[CostRow],
    extractions: Sequence[Extraction],
) -> tuple[PlainTable, ...]:
    """Every table that has rows, in the order of the page.

    Args:
        table: the results, with their intervals.
        level: coverage of the intervals.
        correlations: of methods on graded pairs.
        on_test: what choosing the epoch on test would have given.
        claims: what came of them.
        residuals: predictions against grades.
        pretrainings: their errors by layer.
        elsewhere: their errors on other tasks' texts.
        layers: scores by layer, by task.
        weighed: summaries of token weights, by task.
        choices: what was chosen on dev.
        costs: costs of methods.
        extractions: runs of the backbone.
    """
    tables = (
        intervals_table(table, level),
        correlations_table(correlations),
        on_test,
        claims_table(claims, level),
        *residuals,
        controls_table(control_findings(table)),
        *map(by_layer_table, pretrainings),
        *map(elsewhere_table, elsewhere),
        *map(layers_table, layers),
        *map(token_weights_table, weighed),
        *map(word_classes_table, weighed),
        *map(parts_of_speech_table, weighed),
        choices_table(choices),
        settled_table(choices),
        costs_table(costs),
        extractions_table(extractions),
    )
    return tuple(t for t in tables if t.rows)
