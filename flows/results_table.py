"""The results table in a terminal."""

from typing import Any

from rich.table import Table


def render(summary: dict[str, Any]) -> Table:
    """Methods and controls by tasks, from a report's `summary.json`."""
    table = Table(
        title=summary["title"],
        title_justify="left",
        header_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("method")
    for task in summary["tasks"]:
        table.add_column(task, justify="right")
    return table
