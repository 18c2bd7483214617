"""Copies of small stores, and that they read as what was copied."""

from pathlib import Path

import numpy as np

from permafrost.storage.features.parts import TransferPlan, part_of
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.features.transfer import transfer
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import open_reader
from tests.storage.small_store import SmallStore


def copy(
    small: SmallStore,
    home: Path,
    patterns: tuple[str, ...] = ("*",),
    digests: list[str] | None = None,
) -> TransferPlan:
    return transfer(part_of(small.store, patterns, digests), home, SilentProgress())


def there(home: Path) -> FeatureStore:
    (store,) = all_stores(home)
    return store


def assert_reads(
    store: FeatureStore, small: SmallStore, texts: list[str], arrays: tuple[str, ...]
) -> None:
    digests = [d for t, d in zip(small.texts, small.digests, strict=True) if t in texts]
    named = [t for t in small.texts if t in texts]
    for array in arrays:
        reader = open_reader(
            store, array, digests, budget_bytes=1 << 30, precision="stored", tokens="all"
        )
        for indices, rows in reader.in_order(5):
            for i, text in enumerate(indices.tolist()):
                assert np.array_equal(rows[i], small.expected(array, named[text]))
