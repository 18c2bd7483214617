"""What has to be the same in all processes of a run."""

import importlib.metadata

import pytest

from permafrost.flows.engine.worker_check import facts_here


@pytest.mark.parametrize(
    ("theirs", "same"), [("2.13.0+cpu", True), ("2.13.0", True), ("2.13.1+cu130", False)]
)
def test_workers_with_and_without_a_gpu_work_together(
    monkeypatch: pytest.MonkeyPatch, theirs: str, same: bool
) -> None:
    installed = importlib.metadata.version

    def torch_is(version: str) -> None:
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: version if name == "torch" else installed(name),
        )

    torch_is("2.13.0+cu130")
    here = facts_here()
    torch_is(theirs)
    assert (facts_here() == here) is same
