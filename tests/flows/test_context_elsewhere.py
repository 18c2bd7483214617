"""A node and its context run in a process that has nothing else: the home is data."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import Graph
from permafrost.flows.preview import Preview
from permafrost.storage.durable import read_json
from permafrost.storage.progress import SilentProgress
from tests.flows.engine.sums import total
from tests.storage.object_server import ObjectServer

HOME = "s3://bucket/team/home"
ROOT = Path(__file__).parents[2]
WORKER = """
import pickle, sys
from permafrost.flows.engine.engine import make
from permafrost.storage.progress import SilentProgress

node, context = pickle.load(sys.stdin.buffer)
make(node, context, SilentProgress())
"""


@pytest.mark.deep
def test_a_worker_with_the_node_and_the_home_publishes_at_the_object_store(
    server: ObjectServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "here"))
    context = RunContext(HOME, RunRuntime())
    first, second = total("first", 1), total("second", 2, total("first", 1))
    make(first, context, SilentProgress())
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "there"))
    sent = pickle.dumps((second, context))
    subprocess.run([sys.executable, "-c", WORKER], input=sent, cwd=ROOT, check=True)
    published = f"{HOME.removeprefix('s3://')}/artifacts/{second.id}"
    assert {f"{published}/artifact.json", f"{published}/sum.json"} <= set(server.objects)
    assert not context.artifacts.is_done(second.ref), "this machine has not looked again"
    again = pickle.loads(pickle.dumps(context))
    assert read_json(again.artifacts.open(second.ref) / "sum.json") == 3


def test_a_relative_home_is_the_same_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = RunRuntime(workers=3)
    context = Preview(Graph([]), Path("home of ä"), runtime)
    context.built["corpus/0"] = object()  # pyright: ignore[reportArgumentType]
    sent = pickle.dumps(context)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    found = pickle.loads(sent)
    assert type(found) is RunContext
    assert (found.home, found.runtime, found.built) == (tmp_path / "home of ä", runtime, {})
