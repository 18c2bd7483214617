"""What Prefect shows of a run beside its stages: a name, tags, what it came to, and its report."""

import base64
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.runtime import flow_run as this_run

from permafrost.flows.deployed.flow_run import patiently
from permafrost.flows.engine.progress import duration_text
from permafrost.flows.running import Counts, PipelineResult
from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.markup import literal
from permafrost.storage.quoting import visible

NAME_CHARS = 100
"""Maximum length of a run's name."""
MOST_BYTES = 2_000_000
"""Maximum size of a report as an artifact: it lies in the server's database, and a browser loads it whole."""
_RUNS = ("prefect.flow_runs", "prefect.task_runs")


def run_name(experiment: str, overrides: Sequence[str]) -> str:
    """`demo`, or `demo · seeds=[0], methods.GLOT.optim.lr=0.002`; cut at a word if it is too long."""
    # One that changes the experiment's name is in it already, and how it is run is not what it is.
    changes = ", ".join(visible(o) for o in overrides if not o.startswith(("name=", "runtime.")))
    name = f"{experiment} · {changes}" if changes else experiment
    if len(name) <= NAME_CHARS:
        return name
    words = name[: NAME_CHARS - 1].rpartition(" ")[0].rstrip(" ,·")
    # A single word may be longer than all that there is room for.
    return f"{words} …" if len(words) > NAME_CHARS // 2 else shortened(name, NAME_CHARS)


def experiment_tag(experiment: str) -> str:
    """The tag of every run of an experiment, and of its stages."""
    return f"experiment:{experiment}"


def called(experiment: str | dict[str, Any]) -> str:
    """What an experiment is called before it is read: as its file."""
    if isinstance(experiment, str):
        return visible(Path(experiment).stem)
    return visible(str(experiment.get("name", "")))


def name_run(name: str, tags: Sequence[str] = ()) -> None:
    """Give the flow run that we are in a name, and tags beside those that it has."""
    all_tags = sorted({*this_run.tags, *tags})
    with get_client(sync_client=True) as client:
        patiently(lambda: client.update_flow_run(UUID(this_run.id), name=name, tags=all_tags))


def counts(result: Counts, took_s: float) -> str:
    """`12 computed, 30 reused, 0 failed in 41 s`, of a run that has finished; that nothing was new, if so."""
    computed, reused = result.computed.total(), result.reused.total()
    told = f"{computed} computed, {reused} reused, 0 failed in {duration_text(took_s)}"
    return told if computed else f"nothing new: {told}"


def log_results(result: PipelineResult) -> None:
    """Tell the log the result, its table and where the report lies."""
    table, _, _ = _read(result.report.parent / "results.md").partition("\n\n")
    log = get_run_logger()
    log.info("%s", visible(result.results()["finding"]))
    log.info("%s", table)
    log.info("the report is %s", visible(str(result.report.resolve())))


def show_report(experiment: str, result: PipelineResult) -> None:
    """The report as an artifact that the UI shows by itself, without the file."""
    create_markdown_artifact(
        report_markdown(result.report, result.results()["finding"]),
        key=f"{experiment}-report",
        description="The report, with its tables and figures",
    )


@dataclass(frozen=True)
class _Part:
    name: str
    """As Markdown, for where it is left out."""
    markdown: str


def report_markdown(report: Path, finding: str) -> str:
    """The report as Markdown: the result, its table, the figures inside as PNG, the other tables, its path.

    What would make it larger than `MOST_BYTES` is left out, and named.
    """
    folder = report.parent
    parts = [*_figures(folder), *_tables(folder)]
    first, last = (
        f"{literal(finding)}\n\n{_read(folder / 'results.md').rstrip()}",
        f"The page itself, with more: {literal(visible(str(report.resolve())))}\n",
    )
    room = MOST_BYTES - len((first + last).encode())
    kept: list[str] = []
    left_out: list[str] = []
    for part in parts:
        size = len(part.markdown.encode()) + 2
        if size > room:
            left_out.append(part.name)
            continue
        room -= size
        kept.append(part.markdown)
    if left_out:
        last = (
            f"Left out here, as this would be larger than {MOST_BYTES // 1_000_000} MB: "
            f"{', '.join(left_out)}.\n\n{last}"
        )
    return "\n\n".join([first, *kept, last])


def _figures(folder: Path) -> list[_Part]:
    pictures = sorted(
        (folder / "figures").glob("*.png"), key=lambda p: (p.stem != "metric", p.stem)
    )
    return [_figure(picture) for picture in pictures]


def _figure(picture: Path) -> _Part:
    name = picture.stem.replace("_", " ")
    # In the URL, as a server elsewhere cannot read this machine's files.
    content = base64.b64encode(picture.read_bytes()).decode()
    return _Part(f"the figure {name}", f"![{name}](data:image/png;base64,{content})")


def _tables(folder: Path) -> list[_Part]:
    # Only headings begin a line with that: names are printed literally.
    _, *sections = re.split(r"^## ", _read(folder / "tables.md"), flags=re.MULTILINE)
    return [_Part(f"the table {s.splitlines()[0]}", f"## {s.rstrip()}") for s in sections]


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def print_as_before() -> None:
    """Print nothing of runs that is below Prefect's own level: the server alone is sent it (flows.quiet)."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, PrefectConsoleHandler):
            handler.addFilter(_is_printed)


def _is_printed(record: logging.LogRecord) -> bool:
    of_runs = record.name.startswith(_RUNS)
    return not of_runs or logging.getLogger("prefect").isEnabledFor(record.levelno)
