"""`drop` and `gc` on a disk without room, where they are needed most."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from tests.flows.run_records import finished
from tests.flows.test_cli import Cli
from tests.small_disks import mounted
from tests.storage.small_store import IDENTITY, filled_store, new_store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, 4) as disk:
        yield disk


def fill(disk: Path) -> None:
    with (disk / "filler").open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free) > 0:
            file.write(os.urandom(free))


def test_drop_says_that_it_needs_room_and_gc_makes_some(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(small_disk / "home", capsys)
    store = filled_store(cli.home, 5).store
    identity = IDENTITY.model_copy(update={"storage_dtype": "float32"})
    unused = new_store(cli.home, identity=identity).store
    (unused.root / ".draft-left").write_bytes(bytes(1 << 20))
    finished(cli.home, stores=[store.store_id])
    fill(small_disk)
    asked = ("drop", store.store_id, "--arrays", "hidden/*")
    said = cli(*asked, code=1)
    assert "nothing was dropped" in said
    assert "'permafrost gc' needs no room" in said
    assert "hidden/1" in store.arrays()
    assert verify(store, SilentProgress()) == []
    cli("gc", "--keep", store.store_id)
    assert [one.store_id for one in all_stores(cli.home)] == [store.store_id]
    assert "dropped 1 array" in cli(*asked)
