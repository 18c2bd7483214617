"""`runs`, `pin`, `unpin`: every run that there was, and which of them are kept whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    existing_home,
    say,
)
from permafrost.storage.errors import NotFoundError
from permafrost.storage.nearest import nearest
from permafrost.storage.quoting import counted, quoted

if TYPE_CHECKING:
    from permafrost.flows.records.history import Run, RunScore

RunArgument = Annotated[str, typer.Argument(help="A run: mine@2.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(runs)
    app.command()(pin)
    app.command()(unpin)


def runs(
    experiment: Annotated[
        str | None, typer.Argument(help="Only this one, and with the scores of every run.")
    ] = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """List every run, oldest first: overrides, time, what it computed, how it ended, scores."""
    from permafrost.flows.records.history import histories, history_problems
    from permafrost.flows.records.pins import pinned
    from permafrost.storage.replica import public_name

    root = existing_home(home)
    found = histories(root)
    if experiment is not None:
        if experiment not in found:
            raise NotFoundError(
                f"no experiment {quoted(experiment)} has run here{nearest(experiment, found)}; there "
                f"are {', '.join(found) or 'none'}"
            )
        found = {experiment: found[experiment]}
    kept = set(pinned(root))
    listed = [run for history in found.values() for run in history.runs]
    problems = [problem for _, problem in history_problems(found.values())]
    if json:
        emit({"runs": [run_json(r, r.name in kept) for r in listed], "problems": problems})
        return
    for run in listed:
        for line in run_lines(run, run.name in kept, scores=experiment is not None):
            say(line)
    if not listed and not problems:
        say(f"nothing has run in {public_name(root)}")
    if listed and experiment is None:
        say("scores: permafrost runs NAME; two runs side by side: permafrost compare NAME@1 NAME@2")
    for problem in problems:
        say(f"damaged: {problem}")


def run_lines(run: Run, is_pinned: bool, scores: bool) -> list[str]:
    """A run in a few lines."""
    begun, ended = run.begun, run.ended
    took = "" if ended is None or ended.seconds is None else f", {ended.seconds:.1f} s"
    counts = "" if ended is None else _counts(ended.model_dump())
    first = f"{run.name}  {run.state}, {run.time[:19].replace('T', ' ')}{took}{counts}"
    lines = [first + (", pinned" if is_pinned else "")]
    lines += [f"    --set {override}" for override in begun.overrides or ()]
    if begun.config is None:
        lines.append("    recorded by an earlier version, which kept neither settings nor scores")
    if ended is None and run.state == "stopped":
        lines.append(
            "    no end is recorded: it was killed, or there was no room on the disk to record it"
        )
    if ended is not None and ended.error is not None:
        lines.append(f"    {ended.error}")
    if scores and ended is not None:
        lines += [f"    {line}" for line in score_lines(ended.results)]
    return lines


def _counts(ended: dict[str, Any]) -> str:
    named = (
        (state, sum(ended[state].values())) for state in ("computed", "reused", "failed", "skipped")
    )
    return "".join(f", {n} {state}" for state, n in named if n)


def score_lines(results: Sequence[RunScore]) -> list[str]:
    """A line for each method on a task: test and dev by seed, times 100."""
    from permafrost.stages.report.entries import hundredths

    groups: dict[tuple[str, str, str], list[RunScore]] = {}
    for score in results:
        groups.setdefault((score.task, score.method, score.metric), []).append(score)
    lines: list[str] = []
    for (task, method, metric), group in groups.items():
        group.sort(key=lambda s: s.seed)
        seeds = f" (seeds {', '.join(str(s.seed) for s in group)})" if len(group) > 1 else ""
        tests = " ".join(hundredths(s.test) for s in group)
        devs = " ".join(hundredths(s.dev) for s in group if s.dev is not None)
        scores = f"test {tests}" + (f", dev {devs}" if devs else "")
        lines.append(f"{task}, {method}: {metric} × 100 {scores}{seeds}")
    return lines


def run_json(run: Run, is_pinned: bool) -> dict[str, Any]:
    """All that is recorded of a run."""
    ended = None if run.ended is None else run.ended.model_dump(mode="json")
    return {
        "run": run.name,
        "state": run.state,
        "pinned": is_pinned,
        **run.begun.model_dump(mode="json"),
        "ended": ended,
    }


def show_run(root: Path, name: str, json: bool) -> None:
    """All that is recorded of one run: a summary, then the whole experiment."""
    from permafrost.flows.records.history import find_run
    from permafrost.flows.records.pins import pinned

    run = find_run(root, name)
    is_pinned = run.name in pinned(root)
    if json:
        emit(run_json(run, is_pinned))
        return
    for line in run_lines(run, is_pinned, scores=True):
        say(line)
    begun = run.begun
    say(f"    engine {begun.engine or 'unknown'}, {len(begun.artifacts)} artifacts")
    for task, ref in begun.corpora.items():
        say(f"    corpus of {task}: {ref}")
    if begun.config is not None:
        console.print(f"experiment, digest {begun.config_digest}")
        console.print_json(data=begun.config)


def pin(run: RunArgument, home: HomeFlag = DEFAULT_HOME) -> None:
    """Keep what a run used: gc takes none of it until the run is unpinned."""
    from permafrost.flows.records.pins import pin as pin_run

    kept = pin_run(existing_home(home), run)
    what = f"{counted(len(kept.refs), 'artifact')} and {counted(len(kept.stores), 'feature store')}"
    say(f"{kept.name} is pinned: gc keeps its {what}")


def unpin(run: RunArgument, home: HomeFlag = DEFAULT_HOME) -> None:
    """Let a pinned run go: gc may take what only it used."""
    from permafrost.flows.records.pins import unpin as unpin_run

    unpin_run(existing_home(home), run)
    say(f"{run} is no longer pinned")
