"""A disk without room while a stage saves: one error that says so, whatever the library makes of it."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import DiskFullError
from tests.small_disks import mounted

VALUES = np.random.default_rng(0).normal(size=1 << 19)  # 4 MiB
WRITERS: dict[str, Callable[[Path], object]] = {
    "safetensors": lambda path: save_file({"weight": torch.from_numpy(VALUES)}, path),
    "torch": lambda path: torch.save(torch.from_numpy(VALUES), path),
    "numpy": lambda path: np.save(path.with_suffix(".npy"), VALUES),
    "parquet": lambda path: pq.write_table(pa.table({"x": VALUES}), path),
    "plain": lambda path: path.write_bytes(VALUES.tobytes()),
}
SPEC = ArtifactSpec(stage="fit", config={})


@pytest.fixture
def small_files(tmp_path: Path) -> Iterator[Path]:
    """A home in which no file may grow beyond 1 MiB less a little, as under a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((1 << 20) - 1, hard))
    yield tmp_path
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A home on it."""
    with mounted(tmp_path, 2) as disk:
        yield disk


def _fails_to_publish(home: Path, write: Callable[[Path], object]) -> None:
    store = ArtifactStore(home)
    with (
        pytest.raises(
            DiskFullError, match=r"no room to write .*fit.* bytes free there\); nothing"
        ) as told,
        store.publishing(SPEC, {}) as draft,
    ):
        write(draft.folder / "weights")
    assert "\n" not in str(told.value)
    assert not store.is_done(SPEC.ref)
    assert list((home / "artifacts" / "fit").iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_limit_on_files(small_files: Path, name: str) -> None:
    _fails_to_publish(small_files, WRITERS[name])


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_file_system(small_disk: Path, name: str) -> None:
    _fails_to_publish(small_disk, WRITERS[name])
