"""Stores for the tests of this room: built once per kind, since every fsync counts, and copied for a test
that writes."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from storage.features.layout import Codec
from storage.features.store import FeatureStore
from tests.storage.small_store import SmallStore, filled_store

Shared = Callable[[Codec, str], SmallStore]


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Iterator[None]:
    """It guards against power cuts, which no test can cause, and takes most of the time of these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: os.fstat(fd))
        yield


@pytest.fixture(scope="session")
def shared(_no_fsync: None, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Twenty texts in several segments, by codec and storage dtype; for reading only."""

    @cache
    def build(codec: Codec, dtype: str) -> SmallStore:
        return filled_store(tmp_path_factory.mktemp("shared"), codec=codec, dtype=dtype)

    return build


def _copy(small: SmallStore, home: Path) -> SmallStore:
    root = home / "features" / small.store.store_id
    shutil.copytree(small.store.root, root)
    rows = {array: dict(of_text) for array, of_text in small.rows.items()}
    return SmallStore(FeatureStore.open(root), list(small.texts), rows)


@pytest.fixture
def small(tmp_path: Path, shared: Shared) -> SmallStore:
    """Twenty texts in several segments, uncompressed float16."""
    return _copy(shared("none", "float16"), tmp_path)


@pytest.fixture(params=["none", "zstd"])
def either_codec(tmp_path: Path, shared: Shared, request: pytest.FixtureRequest) -> SmallStore:
    """The same, once for each codec."""
    return _copy(shared(request.param, "float16"), tmp_path)
