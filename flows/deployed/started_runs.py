"""Runs of other deployments that a run starts and does not wait for."""

from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.utilities.urls import url_for

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def require_deployment(name: str) -> None:
    """Raises: InputError: there is no deployment of this name, `flow/deployment`."""
    try:
        with get_client(sync_client=True) as client:
            client.read_deployment_by_name(name)
    except (ObjectNotFound, ValueError) as error:
        raise InputError(
            f"there is no deployment {quoted(name)} to start; 'prefect deployment ls' lists those that there "
            "are, 'prefect deploy --all' makes those of prefect.yaml"
        ) from error


def found_at(run: FlowRun) -> str:
    """Its name and its page, or its id where no page is known: a run has another name once it begins."""
    return f"{run.name} ({url_for(run) or run.id})"


def started_before(key: str) -> FlowRun | None:
    """The run that was started with this key, if there was one."""
    filtered = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
    with get_client(sync_client=True) as client:
        return next(iter(client.read_flow_runs(flow_run_filter=filtered, limit=1)), None)


def start_run(deployment: str, parameters: Mapping[str, Any], key: str | None = None) -> FlowRun:
    """Start a run of a deployment, with its own values of all other parameters.

    Args:
        deployment: its name, `flow/deployment`.
        parameters: of the run.
        key: a second run with the same one is not started.
    """
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(deployment)
        return client.create_flow_run_from_deployment(
            found.id, parameters=dict(parameters), idempotency_key=key
        )
