"""The results table in a terminal."""

from typing import Any

from rich.table import Table


def render(title: str, summary: dict[str, Any]) -> Table:
    """Methods and controls by tasks, test metric times 100, mean ± sd over seeds, best in bold."""
    table = Table(
        title=title, title_justify="left", header_style="bold", show_edge=False, pad_edge=False
    )
    table.add_column("")
    for task, metric in zip(summary["tasks"], summary["metrics"], strict=True):
        table.add_column(f"{task}\n{metric}", justify="right")
    for i, row in enumerate(summary["rows"]):
        is_control = row["role"] == "control"
        cells = [
            "–" if c is None else f"[bold]{c['text']}[/bold]" if c["best"] else c["text"]
            for c in row["cells"]
        ]
        following = summary["rows"][i + 1 : i + 2]
        ends = bool(following) and following[0]["role"] != row["role"]
        table.add_row(
            f"{row['method']} (control)" if is_control else row["method"],
            *cells,
            style="dim" if is_control else None,
            end_section=ends,
        )
    if any(m["value"] is not None for m in summary["majority"]):
        table.add_row("majority class", *(m["text"] for m in summary["majority"]), style="dim")
    return table
