"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, `ci` (the same examples every time) and
`nightly` (many more); no waiting for the disk, and no garbage collection where there is no garbage."""

import gc
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

# Deadlines measure the machine, not the code; pytest-timeout guards against hanging.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
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


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """It guards against power cuts, which no test can cause, and a finished experiment has waited for some
    hundred of them. Tests of what is synced, and when, put their own in its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: os.fstat(fd))
        yield
