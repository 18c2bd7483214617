"""Reading while things are removed: errors that say so, and listings that leave out what is gone."""

import contextlib
import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors

from permafrost.storage import durable
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.disk_use import files_under
from permafrost.storage.durable import bytes_under
from permafrost.storage.errors import DiskFullError, NotFoundError, RemovedError
from permafrost.storage.removal import removal_named


def safe(path: Path) -> object:
    return safetensors.safe_open(path, "np")  # pyright: ignore[reportPrivateImportUsage]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(Path.read_bytes, id="plain"),
        pytest.param(np.load, id="numpy"),
        pytest.param(pq.ParquetFile, id="arrow"),
        pytest.param(pq.read_table, id="arrow's data set"),
        pytest.param(safe, id="safetensors"),
    ],
)
def test_a_file_of_a_home_that_is_gone_is_named(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "a home" / "artifacts" / "fit" / "abc" / "x.parquet"
    path.parents[2].mkdir(parents=True)
    for home in (tmp_path / "a home", None):
        with (
            pytest.raises(RemovedError, match="it was removed while it") as told,
            removal_named(home),
        ):
            read(path)
        assert str(path) in str(told.value)
        assert "Run the same command again" in str(told.value)
    for home in (tmp_path / "another", None):
        with pytest.raises(FileNotFoundError), removal_named(home):
            read(tmp_path / "x.parquet")


def test_listings_leave_out_what_goes_meanwhile(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path)
    stays, *specs = [ArtifactSpec(stage="fit", config={"n": n}) for n in range(5)]
    ended = threading.Event()
    faults: list[BaseException] = []

    def publish(spec: ArtifactSpec) -> None:
        with artifacts.publishing(spec, {}) as draft:
            (draft.folder / "numbers.json").write_text(json.dumps([1] * 100))

    def publish_and_remove() -> None:
        try:
            for _ in range(60):
                for spec in specs:
                    publish(spec)
                    artifacts.remove(spec.ref)
        except BaseException as error:
            faults.append(error)
        finally:
            ended.set()

    publish(stays)
    thread = threading.Thread(target=publish_and_remove)
    thread.start()
    while True:
        last = ended.is_set()
        refs = artifacts.refs()
        assert stays.ref in refs
        assert stays.ref in [manifest.ref for manifest in artifacts.all()]
        assert bytes_under(tmp_path) > 0
        assert all(file.bytes >= 0 for file in files_under(tmp_path))
        for ref in refs:
            assert artifacts.problems(ref) == []
            with contextlib.suppress(NotFoundError, RemovedError):  # and no other error
                artifacts.open(ref)
        if last:
            break
    thread.join()
    assert not faults
    assert refs == [stays.ref]


def test_what_is_removed_is_gone_although_the_folder_above_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, spec = ArtifactStore(tmp_path), ArtifactSpec(stage="fit", config={})
    with artifacts.publishing(spec, {}) as draft:
        (draft.folder / "numbers.json").write_text("[1]")

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(durable, "sync_folder", full)
    with pytest.raises(DiskFullError, match="no room to write"):
        artifacts.remove(spec.ref)
    assert not [p for p in (tmp_path / "artifacts").rglob("*") if p.is_file()]
