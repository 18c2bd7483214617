"""Stores for the tests of this room: built once per kind, and copied for a test that writes."""

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from permafrost.storage.features.layout import Codec
from permafrost.storage.features.store import FeatureStore
from tests.storage.code_packages import Package, forget
from tests.storage.small_store import SmallStore, filled_store

Shared = Callable[[Codec, str], SmallStore]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
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


@pytest.fixture(params=["none", pytest.param("zstd", marks=pytest.mark.deep)])
def either_codec(tmp_path: Path, shared: Shared, request: pytest.FixtureRequest) -> SmallStore:
    """The same, once for each codec."""
    return _copy(shared(request.param, "float16"), tmp_path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Package(tmp_path)
    forget()
