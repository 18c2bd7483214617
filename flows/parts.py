"""The two parts of an experiment as flows of their own: what needs the backbone, and the rest.

A machine with a GPU runs `extract`; `downstream` then runs wherever the home can be read, without one.
"""

import time
from functools import partial
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run as this_run
from prefect.states import Completed

from permafrost.flows.deployed.flow_run import inside_flow_run, patiently
from permafrost.flows.deployed.parameters import (
    DeploymentParameter,
    EngineParameter,
    ExperimentParameter,
    HomeParameter,
    OverridesParameter,
    RuntimeParameter,
    as_parameters,
    request,
)
from permafrost.flows.deployed.shown_in_prefect import called, counts, name_run, run_name
from permafrost.flows.deployed.started_runs import found_at, require_deployment, start_run
from permafrost.flows.pipeline import engine_of, run_in_flow, tagged
from permafrost.flows.running import (
    Counts,
    PipelineResult,
    backbone_part,
    checked,
    not_done,
    run_backbone_part,
)
from permafrost.flows.terminal import Terminal
from permafrost.storage.errors import PermafrostError


@flow(name="extract", persist_result=False, validate_parameters=False)
def extract(
    experiment: ExperimentParameter,
    home: HomeParameter = ".permafrost",
    overrides: OverridesParameter = None,
    engine: EngineParameter = None,
    runtime: RuntimeParameter = None,
    then: DeploymentParameter = None,
) -> Counts:
    """Run what needs the backbone: corpora, extraction of what is new in them, and fine-tunings.

    Args:
        experiment: path of the experiment file, from the folder in which runs work; or its fields.
        home: where features and artifacts are stored: a folder, or the URL of an object store.
        overrides: changes of the experiment for this run, `path.to.field=value` each.
        engine: what runs the nodes: serial, prefect, dask, or dask=tcp://host:port; if not given,
            `runtime.engine` of the experiment, and `prefect` if that names none.
        runtime: how it is run, where that is to differ from what the experiment says.
        then: a deployment, `flow/deployment`, that is started with the same experiment, home and overrides
            once all of it is done.
    """
    started = time.monotonic()
    with inside_flow_run():
        asked = request(experiment, home, overrides, engine, runtime)
        name_run(run_name(called(asked.experiment), asked.overrides))
        if then is not None:
            require_deployment(then)
        found = patiently(lambda: checked(asked.experiment, asked.home, asked.overrides))
        part = backbone_part(found.nodes.graph)
        with tagged(found):
            if not_done(part, found.context):
                by = engine_of(found, asked.engine)
                result = run_backbone_part(found, by, Terminal())
            else:
                result = Counts.reusing(part)
        if then is not None:
            # With a key, as it is asked for again if no answer comes; a run that is retried starts another.
            key = f"{this_run.id} {this_run.run_count}"
            given = as_parameters(experiment, home, overrides)
            run = patiently(partial(start_run, then, given, key))
            get_run_logger().info("started %s: %s", then, found_at(run))
        return _completed(result, time.monotonic() - started)


def _completed(result: Counts, took_s: float) -> Any:
    """The state in which a run ends."""
    return Completed(message=counts(result, took_s), data=result)


@flow(name="downstream", persist_result=False, validate_parameters=False)
def downstream(
    experiment: ExperimentParameter,
    home: HomeParameter = ".permafrost",
    overrides: OverridesParameter = None,
    engine: EngineParameter = None,
    runtime: RuntimeParameter = None,
) -> PipelineResult:
    """Run what needs no backbone, from fits to the report; everything else has to be there.

    Args:
        experiment: path of the experiment file, from the folder in which runs work; or its fields.
        home: where features and artifacts are stored: a folder, or the URL of an object store.
        overrides: changes of the experiment for this run, `path.to.field=value` each.
        engine: what runs the nodes: serial, prefect, dask, or dask=tcp://host:port; if not given,
            `runtime.engine` of the experiment, and `prefect` if that names none.
        runtime: how it is run, where that is to differ from what the experiment says.
    """
    with inside_flow_run():
        asked = request(experiment, home, overrides, engine, runtime)
        name_run(run_name(called(asked.experiment), asked.overrides))
        found = patiently(lambda: checked(asked.experiment, asked.home, asked.overrides))
        if left := not_done(backbone_part(found.nodes.graph), found.context):
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise PermafrostError(
                f"'{left[0].label}'{more} would run here, and 'downstream' runs nothing that needs the "
                "backbone, nor the corpora of that; run 'extract' of the same experiment, home and overrides "
                "first. Nothing was changed"
            )
        return run_in_flow(found, asked.engine)
