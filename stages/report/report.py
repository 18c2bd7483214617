"""Write a report: a page to look at, the same numbers as data, and pictures to reuse."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from stages.report import canvas
from stages.report.cells import Cell, CellResult, read_results
from stages.report.config import CurveAxis, ReportConfig
from stages.report.figures import layer_figure, learning_figure, metric_figure, tasks_figure
from stages.report.history import learning_curves
from stages.report.html import Page, render
from stages.report.layer_curves import layer_description, read_layer_curves
from stages.report.palette import Mark, extended, marks
from stages.report.tables import ResultsTable, results_arrow, tabulate
from stages.report.token_picture import token_picture
from stages.report.token_weights import TaskCorpus, TokenStrings, token_examples
from storage.durable import write_durably, write_json
from storage.errors import InputError


def write_report(
    config: ReportConfig,
    cells: Sequence[Cell],
    texts: Mapping[str, TaskCorpus],
    tokens: TokenStrings,
    provenance: Mapping[str, str],
    folder: Path,
    *,
    layer_curves: pa.Table | None = None,
) -> None:
    """Write report.html, results.parquet, results.md, summary.json and figures/*.png into `folder`.

    The same input gives the same bytes.

    Args:
        config: title, description and layout.
        cells: results, in the order in which methods and tasks are to appear.
        texts: the corpus of every task.
        tokens: digest of a text to its tokens, one per token weight; None where they are not known.
        provenance: shown as it is; the entry "command" is what makes the report again.
        folder: made if it is not there.
        layer_curves: scores by layer, columns of `LAYER_CURVES`; drawn, tabulated, and written as
            layer_curves.parquet.

    Raises:
        InputError: no cells, a cell given twice, a task without a corpus, a task on the axis that no
            cell is of, or layer curves that are not what they should be.
        NotFoundError: a result file is not there.
        CorruptDataError: a result file has not the content it should.
        PermafrostError: a metric is not a finite number.
    """
    results = read_results(cells)
    _check_tasks(config, results, texts)
    table = tabulate(results)
    curves = learning_curves(results)
    by_layer = () if layer_curves is None else read_layer_curves(layer_curves)
    examples = token_examples(results, texts, tokens, config.n_examples)
    row_marks = marks(table)
    with canvas.drawing():
        pictures = {"metric": _main_figure(config, table, row_marks)}
        if curves:
            pictures["learning_curves"] = learning_figure(curves, row_marks)
        if by_layer:
            all_marks = extended(row_marks, [c.method for c in by_layer])
            pictures["layer_curves"] = layer_figure(by_layer, all_marks)
        if examples:
            pictures["token_weights"] = token_picture(examples[0])
        for name, figure in pictures.items():
            write_durably(folder / "figures" / f"{name}.png", canvas.png(figure))
        metric_svg = canvas.svg(pictures["metric"], "m", _metric_description(config, table))
        learning_svg = (
            canvas.svg(pictures["learning_curves"], "l", _LEARNING_DESCRIPTION) if curves else None
        )
        layers_svg = (
            canvas.svg(pictures["layer_curves"], "y", layer_description(by_layer))
            if by_layer
            else None
        )
    _write_parquet(folder / "results.parquet", results_arrow(results))
    if layer_curves is not None:
        _write_parquet(folder / "layer_curves.parquet", layer_curves)
    write_durably(folder / "results.md", table.to_markdown().encode())
    write_json(folder / "summary.json", {"title": config.title, **table.summary()})
    page = Page(
        config=config,
        results=results,
        table=table,
        corpora=texts,
        metric_svg=metric_svg,
        learning_svg=learning_svg,
        layers_svg=layers_svg,
        layer_curves=by_layer,
        examples=examples,
        provenance=provenance,
    )
    write_durably(folder / "report.html", render(page).encode())


def _write_parquet(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_durably(path, buffer.getvalue())


_LEARNING_DESCRIPTION = (
    "Line charts, one per task: dev metric after every epoch for each method, mean over seeds "
    "with the range of the seeds as a band."
)


def _check_tasks(
    config: ReportConfig, results: Sequence[CellResult], texts: Mapping[str, TaskCorpus]
) -> None:
    tasks = dict.fromkeys(r.cell.task for r in results)
    without = [task for task in tasks if task not in texts]
    if without:
        raise InputError(
            f"there are results on {without} but only texts of {sorted(texts)}; pass their corpora as well"
        )
    if isinstance(config.x_axis, CurveAxis):
        unknown = [task for task in config.x_axis.values if task not in tasks]
        if unknown:
            raise InputError(
                f"x_axis.values places the task(s) {unknown}, but the results are of {list(tasks)}; "
                "rename or remove them"
            )


def _main_figure(config: ReportConfig, table: ResultsTable, row_marks: dict[str, Mark]) -> Figure:
    if isinstance(config.x_axis, CurveAxis):
        return metric_figure(table, config.x_axis, row_marks)
    return tasks_figure(table, row_marks)


def _metric_description(config: ReportConfig, table: ResultsTable) -> str:
    """The figure in words, with its numbers: they are in the results table as well."""
    axis = config.x_axis
    against = f"against {axis.label}" if isinstance(axis, CurveAxis) else "by task"
    lines = [
        f"{row.method}: "
        + ", ".join(
            f"{e.mean:.1%} at {column.heading}"
            for column, e in zip(table.columns, row.entries, strict=True)
            if e is not None
        )
        for row in table.rows
    ]
    return f"Test metric {against}. {'; '.join(lines)}."
