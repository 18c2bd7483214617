"""Results with more tasks than a terminal is wide."""

import pytest
from rich.console import Console

from permafrost.flows.terminal import render_fitting
from permafrost.stages.report.entries import entry
from permafrost.stages.report.results_files import results_summary
from permafrost.stages.report.tables import Column, ResultsTable, Row, averages

N_TASKS = 11


def summary() -> dict[str, object]:
    """Three methods on eleven tasks of two kinds."""
    columns = tuple(
        Column(f"Task {i}", "cosine_spearman", f"Task {i}", None, 100, "STS" if i % 2 else "other")
        for i in range(N_TASKS)
    )
    rows = tuple(
        Row(
            f"a method called {m}",
            "method",
            tuple(entry([(10 * m + i) / 100 + 0.001 * i]) for i in range(N_TASKS)),
            (0,),
            (0, 0),
        )
        for m in (1, 2, 3)
    )
    return results_summary(ResultsTable(columns, rows, averages=averages(columns, "mteb")))


def printed(width: int) -> tuple[int, str]:
    console = Console(width=width, record=True)
    tables = render_fitting("A leaderboard", summary(), console)
    for table in tables:
        console.print(table)
    return len(tables), console.export_text()


@pytest.mark.parametrize("width", [60, 80, 130, 400])
def test_every_number_is_there_whatever_the_width(width: int) -> None:
    n_tables, text = printed(width)
    assert (n_tables == 1) == (width == 400)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = text.split()
    for m in (1, 2, 3):
        for i in range(N_TASKS):
            assert words.count(f"{100 * ((10 * m + i) / 100 + 0.001 * i):.1f}") >= 1
    for name in ("A leaderboard", "mean of kinds", *(f"Task {i}" for i in range(N_TASKS))):
        assert name in text


def test_a_narrow_terminal_shows_the_means_first() -> None:
    _, text = printed(60)
    assert text.index("mean of kinds") < text.index("Task 0")
