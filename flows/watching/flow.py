"""Looking for new texts: a run that ends in seconds when there are none, and else starts another one."""

import time
from functools import partial
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import Completed

from permafrost.flows.deployed.flow_run import inside_flow_run, patiently
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
from permafrost.flows.deployed.started_runs import (
    found_at,
    require_deployment,
    start_run,
    started_before,
)
from permafrost.flows.engine.progress import duration_text
from permafrost.flows.pipeline import tagged
from permafrost.flows.running import Checked, checked
from permafrost.flows.watching.named_files import stamps
from permafrost.flows.watching.news import News, whats_new
from permafrost.flows.watching.settling import Look, settled
from permafrost.storage.errors import ChangedError, InputError
from permafrost.storage.keys import digest

MAX_LOSSES = 2
"""Runs that are started anew for the same content, as what an earlier one made was gone."""
MOST_TOLD = 5
"""Corpora and extractions that a message has."""
LEFT = "still being written, left for the next look"


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
        settle_s: seconds after which the sources are looked at again if something is new, or cannot be read;
            what changes meanwhile, or is broken at one look only, is still being written, and left for the
            next look.
    """
    started = time.monotonic()
    with inside_flow_run():
        asked, wait_s = request(experiment, home, overrides), seconds("settle_s", settle_s)
        name_run(run_name(called(asked.experiment), asked.overrides))
        require_deployment(start)

        def read() -> tuple[Checked, News]:
            found = checked(asked.experiment, asked.home, asked.overrides)
            return found, whats_new(found)

        def look() -> Look:
            try:
                seen = patiently(read)
            except ChangedError as error:
                return Look(holds="", error=error, is_written=True)
            except InputError as error:
                files = stamps(asked.experiment, asked.overrides)
                return Look(holds=(type(error), files), error=error)
            return Look(holds=seen[1].content, seen=seen)

        last = settled(look, wait_s)
        if last.seen is None:
            return _ended(f"{last.error}; {LEFT}")
        found, news = last.seen
        with tagged(found):
            took = duration_text(time.monotonic() - started)
            corpora = "1 corpus" if news.n_corpora == 1 else f"{news.n_corpora} corpora"
            if not news.nodes:
                return _ended(f"nothing new in {corpora}, in {took}{_waiting(news)}")
            if last.is_written:
                return _ended(f"{_list(news)}; {LEFT}")
            given = as_parameters(experiment, home, overrides)
            return _ended(f"{_list(news)}; {_given(start, given, news.content, asked.home)}")


def _given(start: str, given: dict[str, Any], content: str, home: str) -> str:
    """Give what is new to a run, unless it was given to one before; what became of that, for people."""
    key = digest({"start": start, "given": given, "content": content})
    lost, n_lost = "", 0
    while (before := patiently(partial(started_before, key))) is not None:
        if before.state is None or not before.state.is_completed():
            state = "unknown" if before.state is None else before.state.name
            return f"given to the run {found_at(before)} of {start} before, whose state is {state}"
        n_lost += 1
        if n_lost > MAX_LOSSES:
            return (
                f"{n_lost} runs of {start} have made this, the last one {found_at(before)}, and each time it "
                f"was gone: look whether they write to {home}, and start one by hand"
            )
        # Dropped or deleted since then: one loss, one run.
        lost = f"the run {found_at(before)} made this, and it is gone; "
        key = digest({"gone": str(before.id), "before": key})
    # Asked for twice, a run with this key is started once.
    run = patiently(partial(start_run, start, given, key))
    return f"{lost}started {start}: {found_at(run)}"


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
