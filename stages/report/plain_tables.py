"""The page's other tables as Markdown and LaTeX: intervals, controls, layers, tokens, choices, costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from permafrost.stages.report.costs import CostRow, Extraction, seconds
from permafrost.stages.report.entries import DASH, Entry, hundredths, p_text, signed
from permafrost.stages.report.findings import (
    ChoiceRow,
    ControlFinding,
    choice_fields,
    control_findings,
)
from permafrost.stages.report.latex import escaped, floating, tabular
from permafrost.stages.report.layer_curves import LayerTable
from permafrost.stages.report.markdown import literal
from permafrost.stages.report.tables import ResultsTable
from permafrost.stages.report.token_summary import TaskSummary
from permafrost.stages.report.tokens import KINDS


@dataclass(frozen=True)
class PlainTable:
    """Text in rows and columns."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_names: int = 2
    """Columns in front that hold names; all others hold numbers."""

    def to_markdown(self) -> str:
        """A heading and a pipe table."""
        rule = [":---" if i < self.n_names else "---:" for i in range(len(self.header))]
        body = [[literal(text) for text in row] for row in (self.header, *self.rows)]
        lines = [f"| {' | '.join(row)} |\n" for row in (body[0], rule, *body[1:])]
        return f"## {literal(self.title)}\n\n{''.join(lines)}"

    def to_latex(self, label: str) -> str:
        """A floating booktabs table."""
        head, *body = [[escaped(text) for text in row] for row in (self.header, *self.rows)]
        alignment = "l" * self.n_names + "r" * (len(self.header) - self.n_names)
        return floating(tabular(alignment, [[head], body]), escaped(self.title), label)


def plain_tables(
    table: ResultsTable,
    level: float,
    *,
    layers: Sequence[LayerTable],
    weighed: Sequence[TaskSummary],
    choices: Sequence[ChoiceRow],
    costs: Sequence[CostRow],
    extractions: Sequence[Extraction],
) -> tuple[PlainTable, ...]:
    """Every table that has rows, in the order of the page.

    Args:
        table: the results, with their intervals.
        level: coverage of these.
        layers: scores by layer, by task.
        weighed: token weights, by task.
        choices: what was chosen on dev.
        costs: what methods took.
        extractions: what the backbone took.
    """
    found = (
        intervals_table(table, level),
        controls_table(control_findings(table)),
        *map(layers_table, layers),
        *map(token_weights_table, weighed),
        choices_table(choices),
        settled_table(choices),
        costs_table(costs),
        extractions_table(extractions),
    )
    return tuple(t for t in found if t.rows)


def to_markdown(tables: Sequence[PlainTable]) -> str:
    """All tables in one text."""
    return "\n".join(table.to_markdown() for table in tables)


def to_latex(tables: Sequence[PlainTable]) -> str:
    """All tables in one text; labels `tab:report-1` and so on."""
    return "\n".join(table.to_latex(f"report-{i}") for i, table in enumerate(tables, start=1))


def controls_table(findings: Sequence[ControlFinding]) -> PlainTable:
    """Controls against the majority rate."""
    return PlainTable(
        "Controls against the majority class, × 100",
        ("control", "task", "test", "majority", "difference", "std. error", "p (Holm)", "finding"),
        tuple(
            (
                f.control,
                f.task,
                f.entry.text,
                hundredths(f.majority),
                f.difference,
                hundredths(f.standard_error),
                p_text(f.p),
                f.verdict,
            )
            for f in findings
        ),
    )


def intervals_table(table: ResultsTable, level: float) -> PlainTable:
    """Intervals of every result, and of its difference to the best."""
    rows: list[tuple[str, ...]] = []
    for place, column in enumerate(table.columns):
        for row in table.rows:
            if (found := table.interval(row, place)) is None:
                continue
            against = table.standings[place].against(row.method)
            is_best = table.standings[place].best == row.method
            to_best = ("best" if is_best else DASH, DASH, DASH)
            if against is not None:
                difference = against.difference
                to_best = (
                    signed(difference.value),
                    _span(difference.low, difference.high, signed),
                    p_text(difference.p),
                )
            test = (hundredths(found.value), _span(found.low, found.high, hundredths))
            rows.append((column.heading, row.method, *test, *to_best))
    header = ("task", "method", "test", "interval", "to the best", "interval", "p")
    title = f"Test metric with its {level:.0%} interval over test examples and seeds, × 100"
    return PlainTable(title, header, tuple(rows))


def layers_table(by_layer: LayerTable) -> PlainTable:
    """Score by layer of every method of a task."""
    return PlainTable(
        f"{by_layer.task}: score by layer, × 100",
        ("layer", *(curve.method for curve in by_layer.curves)),
        tuple(
            (
                str(layer),
                *(DASH if score is None else hundredths(score) for score, _ in cells),
            )
            for layer, cells in by_layer.rows()
        ),
        n_names=1,
    )


def token_weights_table(summary: TaskSummary) -> PlainTable:
    """Where the weight of every method goes on a task."""
    title = (
        f"{summary.task}: share of the weight by kind of token, × 100, over {summary.n_texts} texts"
    )
    return PlainTable(
        title,
        ("method", "effective tokens", "entropy", *KINDS),
        tuple(
            (
                m.method,
                f"{m.effective_tokens:.1f}",
                f"{m.entropy:.2f}",
                *(hundredths(float(share)) for share in m.kinds),
            )
            for m in summary.methods
        ),
        n_names=1,
    )


def choices_table(rows: Sequence[ChoiceRow]) -> PlainTable:
    """What was chosen on dev."""
    fields, _ = choice_fields(rows)
    return PlainTable(
        "What was chosen on dev; metrics × 100",
        ("task", "method", *fields, "seeds", "dev", "test"),
        tuple(
            (
                row.task,
                row.method,
                *(row.choices.get(field, DASH) for field in fields),
                ", ".join(map(str, row.seeds)),
                _mean(row.dev),
                _mean(row.test),
            )
            for row in rows
        ),
    )


def settled_table(rows: Sequence[ChoiceRow]) -> PlainTable:
    """The settings that every method has alike, where it has them at all."""
    _, settled = choice_fields(rows)
    return PlainTable(
        "The same wherever it applies", ("setting", "value"), tuple(settled.items()), n_names=1
    )


def costs_table(rows: Sequence[CostRow]) -> PlainTable:
    """What every method took."""
    return PlainTable(
        "Costs beside the test metric × 100; means over seeds",
        ("task", "method", "test", "parameters", "settings", "epochs", "fit, s", "score, s"),
        tuple(
            (
                row.task,
                row.method,
                _mean(row.test),
                DASH.join(f"{n:,}" for n in sorted(set(row.n_parameters))),
                str(row.n_candidates or DASH),
                DASH if row.n_epochs is None else f"{row.n_epochs:,.0f}",
                seconds(row.fit_seconds),
                seconds(row.score_seconds),
            )
            for row in rows
        ),
    )


def extractions_table(rows: Sequence[Extraction]) -> PlainTable:
    """What the backbone took."""
    return PlainTable(
        "Runs of the backbone",
        ("extraction", "tokens", "seconds"),
        tuple((e.label, f"{e.n_tokens:,}", seconds(e.seconds)) for e in rows),
        n_names=1,
    )


def _span(low: float, high: float, printed: Callable[[float], str]) -> str:
    return f"{printed(low)} to {printed(high)}"


def _mean(found: Entry | None) -> str:
    return DASH if found is None else hundredths(found.mean)
