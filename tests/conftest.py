"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, `ci` (the same examples every time), `deep`
(more of them) and `nightly` (many more); no waiting for the disk, no garbage collection where there is no
garbage; which tests share a process."""

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import shape_check
from hypothesis import settings
from short import few

# Deadlines measure the machine, not the code; pytest-timeout guards against hanging.
settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("deep", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") == "true" else "default")
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports of libraries make a million objects that stay: Python would look through them time and again,
    here and in every test that collects garbage, and take a second to leave each at the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests are spread over processes by group, a file's stay together, and so do files that share a
    Dask cluster, or Prefect's server without one: to start these costs a process 20 s of the processor."""
    _leave_few(items)
    uses = dict[Path, set[str]]()
    for item in items:
        uses.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))
    for item in items:
        shared = [name for name in ("scheduler", "prefect_server") if name in uses[item.path]]
        file = item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group((*shared, file)[0]))
    # What takes longest first, as it would end alone: files whose tests are given the most time, then those
    # with servers or object stores.
    longest = Counter[Path]()
    for item in items:
        if mark := item.get_closest_marker("timeout"):
            longest[item.path] = max(longest[item.path], mark.args[0])
    servers = {"scheduler", "prefect_server", "server"}
    items.sort(key=lambda item: (-longest[item.path], not uses[item.path] & servers))


def _leave_few(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked `few(n)`, those that are not among the n that `few` takes become deep."""
    cases = dict[str, list[pytest.Item]]()
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("deep"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for mine in cases.values():
        mark = mine[0].get_closest_marker("few")
        assert mark is not None
        kept = few([item.nodeid for item in mine], mark.args[0])
        for item in mine:
            if item.nodeid not in kept:
                item.add_marker(pytest.mark.deep)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Signatures are checked anew in each test."""
    shape_check.check_the_next_calls()
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """It guards against power cuts, which no test can cause, and a finished experiment has waited for some
    hundred of them. Tests of what is synced, and when, put their own in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: os.fstat(fd))
        yield


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An `ObjectServer` on loopback, which the environment names; homes that are attached to it are left."""
    # Not above: what is imported before pytest is configured has its signatures unchecked.
    from permafrost.storage import replica
    from tests.storage.object_server import object_server

    with object_server() as state:
        for name, value in state.environment.items():
            monkeypatch.setenv(name, value)
        yield state
        for folder in list(replica._replicas):
            replica.detach(folder)
