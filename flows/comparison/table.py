"""The output of `permafrost compare`: one table, as text, Markdown, LaTeX or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from permafrost.flows.comparison.comparing import Side
from permafrost.flows.comparison.config_changes import ConfigChange, config_changes
from permafrost.stages.metrics.comparison import VERDICTS, Basis, Change, Comparison
from permafrost.stages.report.entries import DASH, hundredths, p_text, signed
from permafrost.stages.report.markup import escaped, floating, literal, tabular
from permafrost.storage.quoting import visible

HEADINGS = ("task", "method", "metric", "A", "B", "B − A", "interval", "p", "over", "verdict")
_EXPLAINED: dict[Basis, tuple[str, str]] = {
    "examples": (
        "Over examples",
        "paired bootstrap on the test examples that both sides answered, matched by the digests of their "
        "texts, queries of a search by their id, text and judgements; scores are means over seeds; the "
        "noise is the choice of examples, and of seeds where a side has several.",
    ),
    "other examples": (
        "Over other examples",
        "the two sides have different test examples or labels, so those of each are resampled for "
        "themselves; the noise is the choice of either's, and of seeds where a side has several.",
    ),
    "seeds": (
        "Over seeds",
        "Welch's t-test on the scores of the seeds, as predictions were not kept on both "
        "sides; the noise is that of training alone, and the test sets may differ.",
    ),
    "none": (
        "Cannot tell",
        "without predictions there are too few seeds to compare, or all are alike; of different test "
        "examples, not all predictions were kept.",
    ),
}
_N_TEXT = 3
"""Leading columns with text; all others except the last hold numbers."""
_TERMINAL = ("A", "B", "B − A", "interval", "p", "verdict")
"""Columns after the method in a terminal; task and metric have their own lines."""
_COLOURS = {"better": "green", "worse": "red"}


def rows(comparison: Comparison) -> list[list[str]]:
    """A row per method and task, metrics times 100; columns of `HEADINGS`."""
    return [_row(change) for change in comparison.changes]


def _row(change: Change) -> list[str]:
    tested = change.tested
    return [
        change.task,
        change.method if change.role == "method" else f"{change.method} ({change.role})",
        change.metric,
        hundredths(change.a),
        hundredths(change.b),
        signed(change.difference),
        DASH if tested is None else f"{signed(tested.low)} to {signed(tested.high)}",
        DASH if tested is None else p_text(tested.p),
        _over(change),
        change.verdict,
    ]


def _over(change: Change) -> str:
    match change.basis:
        case "examples":
            return f"{change.n_examples:,} examples"
        case "other examples":
            return "{:,} and {:,} examples".format(*change.n_of_each or ())
        case "seeds":
            return f"{change.n_seeds[0]} and {change.n_seeds[1]} seeds"
        case "none":
            return DASH


def notes(comparison: Comparison) -> list[str]:
    """A summary of the table, how it was tested, and what it leaves out."""
    counts = ", ".join(f"{comparison.count(v)} {v}" for v in VERDICTS if comparison.count(v))
    lines = [
        f"B against A: {counts}. {comparison.n_tests} tests at {comparison.alpha:g}, not corrected for their "
        "number."
    ]
    by_basis: dict[Basis, list[tuple[str, str]]] = {}
    for change in comparison.changes:
        by_basis.setdefault(change.basis, []).append((change.task, change.method))
    for basis, explained in _EXPLAINED.items():
        if basis in by_basis:
            which = f" ({_listed(by_basis[basis])})" if len(by_basis) > 1 else ""
            lines.append(f"{explained[0]}{which}: {explained[1]}")
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        if names:
            lines.append(f"Only in {side}: {_listed(names)}.")
    return lines


def differences(a: Side, b: Side) -> list[str]:
    """What is missing of either side, and in which settings the two differ; of runs whose settings were
    recorded."""
    changes = _settings(a, b)
    if changes is None:
        return [*a.remarks, *b.remarks]
    if not changes:
        return [*a.remarks, *b.remarks, "A and B have the same settings."]
    return [*a.remarks, *b.remarks, "Settings:", *(f"  {change}" for change in changes)]


def _settings(a: Side, b: Side) -> list[ConfigChange] | None:
    if a.config is None or b.config is None:
        return None
    return config_changes(a.config, b.config)


def _listed(names: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{method} on {task}" for task, method in names)


def as_text(a: Side, b: Side, comparison: Comparison) -> Group:
    """For a terminal; colours only repeat the verdict, which is in words."""
    table = Table(
        title=Text(f"A: {visible(a.label)}\nB: {visible(b.label)}", "table.title"),
        title_justify="left",
        header_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    for heading in ("", *_TERMINAL):
        is_number = heading not in ("", "verdict")
        table.add_column(heading, justify="right" if is_number else "left")
    columns = [HEADINGS.index(heading) for heading in _TERMINAL]
    task = None
    for row in rows(comparison):
        if task != (task := f"{row[0]}, {row[2]}"):
            table.add_section()
            table.add_row(Text(visible(task), "bold"))
        *numbers, verdict = (row[i] for i in columns)
        table.add_row(
            Text(visible(row[1])), *map(Text, numbers), Text(verdict, _COLOURS.get(verdict, ""))
        )
    words = [*notes(comparison), *differences(a, b)]
    return Group(table, *(Text(visible(note)) for note in words))


def as_markdown(a: Side, b: Side, comparison: Comparison) -> str:
    """A pipe table with its notes."""
    rule = [":---"] * _N_TEXT + ["---:"] * (len(HEADINGS) - _N_TEXT - 1) + [":---"]
    lines = [list(HEADINGS), rule, *([literal(cell) for cell in row] for row in rows(comparison))]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    words = [f"A: {a.label}", f"B: {b.label}", *notes(comparison), *differences(a, b)]
    return table + "".join(f"\n{literal(note)}\n" for note in words)


def as_latex(a: Side, b: Side, comparison: Comparison) -> str:
    """A booktabs table with its notes as the caption."""
    body = [[escaped(cell) for cell in row] for row in rows(comparison)]
    alignment = "l" * _N_TEXT + "r" * (len(HEADINGS) - _N_TEXT - 1) + "l"
    table = tabular(alignment, [[list(map(escaped, HEADINGS))], body])
    lines = (f"A: {a.label}. B: {b.label}.", *notes(comparison), *a.remarks, *b.remarks)
    return floating(table, " ".join(map(escaped, lines)), "comparison")


def as_json(a: Side, b: Side, comparison: Comparison) -> dict[str, Any]:
    """Plain JSON; metrics as fractions."""
    changes = _settings(a, b)
    names = {"only_a": comparison.only_a, "only_b": comparison.only_b}
    return {
        "a": a.label,
        "b": b.label,
        "alpha": comparison.alpha,
        "n_tests": comparison.n_tests,
        "counts": {verdict: comparison.count(verdict) for verdict in VERDICTS},
        "changes": [asdict(change) for change in comparison.changes],
        **{k: [{"task": t, "method": m} for t, m in results] for k, results in names.items()},
        "notes": [*notes(comparison), *a.remarks, *b.remarks],
        "settings": None if changes is None else [asdict(change) for change in changes],
    }
