"""A home of which a run reads one array, and one of things that were used at different times."""

from pathlib import Path

import pytest

from permafrost.flows.disk import garbage
from permafrost.flows.records.runs import RunRecord, write_run
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from tests.flows.disk.aged_home import NOW, Aged
from tests.flows.test_cli import Cli
from tests.storage.small_store import IDENTITY, filled_store


@pytest.fixture
def read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A home whose latest run extracted `hidden/1` of the only store."""
    home = tmp_path / "home"
    store = filled_store(home, 5).store
    spec = ArtifactSpec(
        stage="extract",
        config={"store": IDENTITY.model_dump(mode="json"), "arrays": ["hidden/1"]},
    )
    with ArtifactStore(home).publishing(spec, {}):
        pass
    record = RunRecord(
        experiment="mine", finished="", artifacts=(str(spec.ref),), stores=(store.store_id,)
    )
    write_run(home, record)
    return Cli(home, capsys)


@pytest.fixture
def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Aged:
    """As eight days after its last run."""
    monkeypatch.setattr(garbage, "now", lambda: NOW)
    return Aged(tmp_path / "aged")
