"""Looking for new texts: a run that ends in seconds when there are none, and else starts another one."""

import time
from dataclasses import dataclass, replace
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed

from permafrost.flows.deployed.flow_run import inside_flow_run, patiently, sleep
from permafrost.flows.deployed.parameters import (
    ExperimentParameter,
    HomeParameter,
    OverridesParameter,
    RequiredDeploymentParameter,
    SecondsParameter,
    as_parameters,
    request,
    seconds,
)
from permafrost.flows.deployed.shown_in_prefect import called, name_run, run_name
from permafrost.flows.deployed.started_runs import require_deployment, start_run, started_before
from permafrost.flows.engine.progress import duration_text
from permafrost.flows.nodes.corpora import CorpusStage
from permafrost.flows.nodes.extraction import Extract, planned
from permafrost.flows.pipeline import tagged
from permafrost.flows.running import Checked, backbone_part, checked, not_done
from permafrost.flows.why.reasons import Reasons
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest

MAX_LOSSES = 2
"""Runs that are started anew for the same content, as what an earlier one made was gone."""
MOST_TOLD = 5
"""Corpora and extractions that a message has."""


@dataclass(frozen=True)
class News:
    """What of an experiment's texts is not extracted yet."""

    nodes: tuple[str, ...]
    """Ids of the nodes that would run; none if nothing is new."""
    told: tuple[str, ...]
    """What is new, for people, corpus by corpus."""
    content: str
    """Digest of all that the sources hold now."""
    n_corpora: int
    """Corpora that were looked at."""
    n_waiting: int
    """Nodes that need no backbone and are not done."""


def whats_new(found: Checked) -> News:
    """What differs between the sources of an experiment and what is extracted."""
    graph, context = found.nodes.graph, found.context
    part = backbone_part(graph)
    left = not_done(part, context)
    plans = {node.id: planned(node, context) for node in left if node.stage == Extract.name}
    reasons = Reasons(graph, context, plans, all_told=False)
    told = [
        f"{node.label}: {reasons.why(node).headline}"
        for node in left
        if node.stage in (CorpusStage.name, Extract.name) and node.id in reasons.waiting
    ]
    return News(
        nodes=tuple(node.id for node in left),
        told=tuple(told) or tuple(node.label for node in left),
        content=digest(sorted(node.id for node in part)),
        n_corpora=sum(node.stage == CorpusStage.name for node in part),
        n_waiting=len(not_done(graph, context)) - len(left),
    )


@flow(name="watch", persist_result=False, validate_parameters=False)
def watch(
    experiment: ExperimentParameter,
    home: HomeParameter = ".permafrost",
    overrides: OverridesParameter = None,
    start: RequiredDeploymentParameter = "extract/extract",
    settle_s: SecondsParameter = 10.0,
) -> None:
    """Look for texts that are not extracted, and start a run that extracts them if there are any.

    What was given to a run of this experiment once is not given to another one: a run that fails is for a
    person to look at.
    Only where it completed, and what it made is gone, another one is started.

    Args:
        experiment: path of the experiment file, from the folder in which runs work; or its fields.
        home: where features and artifacts are stored: a folder, or the URL of an object store.
        overrides: changes of the experiment, `path.to.field=value` each.
        start: the deployment, `flow/deployment`, that is started with the same experiment, home and
            overrides.
        settle_s: seconds after which the sources are looked at again if something is new; what has changed
            meanwhile is still being written, and left for the next look.
    """
    started = time.monotonic()
    with inside_flow_run():
        asked, wait_s = request(experiment, home, overrides), seconds("settle_s", settle_s)
        name_run(run_name(called(asked.experiment), asked.overrides))
        require_deployment(start)

        def look() -> tuple[Checked, News]:
            found = checked(asked.experiment, asked.home, asked.overrides)
            return found, whats_new(found)

        found, news = _settled(lambda: patiently(look), wait_s)
        with tagged(found):
            took = duration_text(time.monotonic() - started)
            corpora = "1 corpus" if news.n_corpora == 1 else f"{news.n_corpora} corpora"
            if not news.nodes:
                return _ended(f"nothing new in {corpora}, in {took}{_waiting(news)}")
            if not news.content:
                return _ended(f"{_list(news)}; still being written, left for the next look")
            given = as_parameters(experiment, home, overrides)
            key = digest({"start": start, "given": given, "content": news.content})
            lost, n_lost = "", 0
            while (before := started_before(key)) is not None:
                state = "unknown" if before.state is None else before.state.name
                if before.state is None or not before.state.is_completed():
                    return _ended(
                        f"{_list(news)}; given to the run {before.name} of {start} before, whose state is "
                        f"{state}"
                    )
                n_lost += 1
                if n_lost > MAX_LOSSES:
                    return _ended(
                        f"{_list(news)}; {n_lost} runs of {start} have made this, the last one "
                        f"{before.name}, and each time it was gone: look whether they write to {asked.home}, "
                        "and start one by hand"
                    )
                # Dropped or deleted since then: one loss, one run.
                lost = f"; the run {before.name} made this, and it is gone"
                key = digest({"gone": str(before.id), "before": key})
            run = start_run(start, given, key)
            return _ended(f"{_list(news)}{lost}; started {start}: {run.name}")


def _settled(look: Any, settle_s: float) -> Any:
    """What is found; where something is new, only after it has stayed the same for a while."""
    try:
        found, news = look()
        if not news.nodes:
            return found, news
    except InputError as error:
        # Perhaps somebody is in the middle of a line.
        get_run_logger().info("looking again in %g s: %s", settle_s, error)
        news = None
    sleep(settle_s)
    found, again = look()
    if news is not None and news.content != again.content:
        again = replace(again, content="")
    return found, again


def _waiting(news: News) -> str:
    if not news.n_waiting:
        return ""
    what = "1 stage is" if news.n_waiting == 1 else f"{news.n_waiting} stages are"
    return (
        f"; {what} not done, none of which needs the backbone: downstream or a run of the whole experiment "
        "does them"
    )


def _list(news: News) -> str:
    more = len(news.told) - MOST_TOLD
    return "; ".join(news.told[:MOST_TOLD]) + (f"; and {more} more" if more > 0 else "")


def _ended(message: str) -> Any:
    get_run_logger().info("%s", message)
    return Completed(message=message)
