"""The command line inside a child; a run goes node by node there, without a server of Prefect's."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from permafrost.flows import pipeline
from permafrost.flows.cli import app
from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.running import Checked, PipelineResult, run_graph
from permafrost.flows.terminal import Terminal
from tests.campaign.children import Ended


def _run_serially(
    found: Checked, experiment: Any, home: str, overrides: Sequence[str], engine: str | None = None
) -> PipelineResult:
    return run_graph(found.nodes, found.context, SerialEngine(), Terminal(), found.overrides)


def command(*arguments: object) -> Callable[[], None]:
    """The work of `permafrost` with these arguments, for a child."""

    def work() -> None:
        pipeline.run_checked = _run_serially
        sys.argv = ["permafrost", *map(str, arguments)]
        app.main()

    return work


def require_told(ended: Ended) -> None:
    """A command that did not do its work says so in a line, and with the status for it."""
    assert "Traceback" not in ended.said, f"a bare traceback: {ended.tail}"
    assert ended.status in (0, 1, 2), f"ended with {ended.status}: {ended.tail}"
    assert ended.status == 0 or ended.said.strip(), "failed without a word"


def require_done(ended: Ended) -> None:
    """A command has done its work."""
    require_told(ended)
    assert ended.status == 0, f"ended with {ended.status}: {ended.tail}"
