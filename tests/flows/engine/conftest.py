"""A Dask cluster that the tests of a module share: its workers take seconds to start."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.flows.companion import Program, companion
from permafrost.flows.engine import cluster_process

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="package")
def scheduler() -> Iterator[str]:
    """Address of a scheduler with two workers, which can import the tests."""
    settings = {"path": [str(ROOT), *sys.path], "threads": 1, "workers": 2, "memory": "2 GB"}
    program = Program(
        name="a cluster",
        file=cluster_process.__file__,
        arguments=[json.dumps(settings)],
        environment={"DASK_LOGGING__DISTRIBUTED": "critical", "PATH": os.environ["PATH"]},
        patience_s=60,
        advice=("", ""),
    )
    with companion(program) as line:
        yield json.loads(line)["scheduler"]
