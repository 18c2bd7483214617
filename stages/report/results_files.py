"""The results as files: one row per cell (`results.parquet`), Markdown, LaTeX, and JSON for listings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from permafrost.stages.metrics.bootstrap import Interval
from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.entries import DASH, TIED, hundredths
from permafrost.stages.report.markup import escaped, floating, literal, tabular
from permafrost.stages.report.standing import Standing
from permafrost.stages.report.tables import Column, PrintedMark, ResultsTable, Row

CellName = tuple[str, str, int]
"""Method, task, seed."""
SCHEMA = pa.schema(
    [
        pa.field("method", pa.string(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("category", pa.string()),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("role", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("dev", pa.float64()),
        pa.field("test", pa.float64(), nullable=False),
        pa.field("pearson", pa.float64()),
        pa.field("spearman", pa.float64()),
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("majority", pa.float64()),
        pa.field("guess", pa.float64()),
        pa.field("class_balance", pa.string()),
        pa.field("overlap", pa.float64()),
        pa.field("n_clean_test", pa.int64()),
        pa.field("clean_test", pa.float64()),
        pa.field("n_dev", pa.int64(), nullable=False),
        pa.field("n_test", pa.int64(), nullable=False),
        pa.field("n_parameters", pa.int64(), nullable=False),
        pa.field("choice", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""Columns, one row per cell. `pearson` and `spearman` are both correlations of graded pairs on test, whatever
the metric; null for other tasks. `ci_low` and `ci_high` are the confidence interval of `test` over resampled
test examples. All four are null if the predictions were not kept. `majority` is the accuracy of always
answering the most frequent class, `guess`, of multiple choice, that of a guess among the choices.
`overlap` is the share of test examples that share a text with train, and `clean_test` the metric on the other
`n_clean_test`. `choice` and `class_balance` (the share of each class in test) are JSON."""
_OF_CELL = ("method", "task", "category", "seed", "role", "key")
_MARKDOWN: dict[PrintedMark, str] = {"plain": "{}", "best": "**{}**", "tied": f"{{}} {TIED}"}
_MARKED: dict[PrintedMark, str] = {
    "plain": "{}",
    "best": r"\textbf{{{}}}",
    "tied": r"{}$^{{\approx}}$",
}


def cell_intervals(
    columns: Sequence[Column], standings: Sequence[Standing]
) -> dict[CellName, Interval]:
    """The interval of every cell that has one."""
    return {
        (method, column.task, seed): interval
        for column, standing in zip(columns, standings, strict=True)
        for (method, seed), interval in standing.cells.items()
    }


def results_arrow(
    results: Sequence[CellResult],
    intervals: Mapping[CellName, Interval],
    correlations: Mapping[CellName, tuple[float, float]],
) -> pa.Table:
    """One row per cell, in the same order; `correlations` are Pearson's and Spearman's of a cell."""
    rows = [
        {
            **{name: getattr(r.cell, name) for name in _OF_CELL},
            **r.metrics.model_dump(exclude={"choice", "class_balance"}),
            "pearson": pearson,
            "spearman": spearman,
            "ci_low": None if interval is None else interval.low,
            "ci_high": None if interval is None else interval.high,
            "choice": json.dumps(r.metrics.choice, sort_keys=True, ensure_ascii=False),
            "class_balance": None
            if (shares := r.metrics.class_balance) is None
            else json.dumps(shares, ensure_ascii=False),
        }
        for r in results
        for name in [(r.cell.method, r.cell.task, r.cell.seed)]
        for interval in [intervals.get(name)]
        for pearson, spearman in [correlations.get(name, (None, None))]
    ]
    return pa.table({name: [row[name] for row in rows] for name in SCHEMA.names}, schema=SCHEMA)


def _rate(value: float | None) -> str:
    return DASH if value is None else hundredths(value)


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def results_markdown(table: ResultsTable) -> str:
    """A pipe table, best in bold and controls labelled, with chance, class balance and notes below."""
    seeds = ["seeds"] if table.has_seeds else []
    body = [
        [
            literal(row.label),
            *(_MARKDOWN[p.mark].format(p.text) for p in table.printed(row)),
            *(str(row.n_seeds) for _ in seeds),
        ]
        for row in table.rows
    ]
    rates = [_rate(c.chance) for c in table.columns]
    header = [
        "method",
        *(f"{literal(c.heading)} ({literal(c.metric)})" for c in (*table.columns, *table.averages)),
        *seeds,
    ]
    rule = [":---", *("---:" for _ in header[1:])]
    dashes = [DASH] * (len(table.averages) + len(seeds))
    words = table.chance_words
    last = [[words.row, *rates, *dashes]] if words else []
    if table.has_classes:
        shares = [c.balance_text for c in table.columns]
        last.append(["classes in test", *shares, *dashes])
    lines = [f"| {' | '.join(line)} |\n" for line in (header, rule, *body, *last)]
    return "".join([*lines, *(f"\n{literal(note)}\n" for note in table.notes)])


def results_summary(table: ResultsTable) -> dict[str, Any]:
    """JSON for listings; `tasks` are the headings of every row's `cells`."""
    return {
        "tasks": [c.heading for c in table.columns],
        "metrics": [c.metric for c in table.columns],
        "n_test": [c.n_test for c in table.columns],
        "averages": [{"heading": a.heading, "metric": a.metric} for a in table.averages],
        "notes": list(table.notes),
        "majority": [{"value": c.majority, "text": _rate(c.majority)} for c in table.columns],
        "guess": [{"value": c.guess, "text": _rate(c.guess)} for c in table.columns],
        "class_balance": [
            {"value": c.class_balance, "text": c.balance_text} for c in table.columns
        ],
        "overlap": [c.overlap for c in table.columns],
        "rows": [
            {
                "method": row.method,
                "role": row.role,
                "n_parameters": list(row.n_parameters),
                "cells": [
                    None
                    if e is None
                    else {
                        "mean": e.mean,
                        "sd": e.sd,
                        "n": e.n,
                        "text": table.text(e),
                        "best": table.is_best(row, i),
                        "tied": table.is_tied(row, i),
                        "interval": _ends(table.interval(row, i)),
                    }
                    for i, e in enumerate(row.entries)
                ],
                "averages": [vars(p) for p in table.printed(row)[len(table.columns) :]],
            }
            for row in table.rows
        ],
    }


def results_latex(table: ResultsTable, title: str) -> str:
    """The results, best in bold, with the notes as the caption."""
    columns = (*table.columns, *table.averages)
    seeds = ["seeds"] if table.has_seeds else []
    head = [
        ["method", *(escaped(c.heading) for c in columns), *seeds],
        ["", *(escaped(c.metric) for c in columns), *("" for _ in seeds)],
    ]
    roles: tuple[Role, ...] = ("method", "baseline", "control")
    groups = [[_row(table, row) for row in table.of_role(role)] for role in roles]
    dashes = [escaped(DASH)] * (len(table.averages) + len(seeds))
    rates = [escaped(_rate(c.chance)) for c in table.columns]
    words = table.chance_words
    chance = [[words.row, *rates, *dashes]] if words else []
    spread = ", mean ± sample standard deviation over seeds" if table.has_spread else ""
    about = f"{title}. Test metric × 100{spread}; bold: highest mean of the methods in a column."
    caption = " ".join(map(escaped, (about, *table.notes)))
    body = tabular("l" + "r" * (len(columns) + len(seeds)), [head, *groups, chance])
    return floating(body, caption, "results")


def _row(table: ResultsTable, row: Row) -> list[str]:
    printed = (_MARKED[p.mark].format(escaped(p.text)) for p in table.printed(row))
    seeds = [str(row.n_seeds)] if table.has_seeds else []
    return [escaped(row.label), *printed, *seeds]
