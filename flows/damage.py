"""Damage in a home, returned rather than raised."""

from pathlib import Path

from permafrost.storage.errors import PermafrostError
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import Progress


def store_problems(folder: Path, progress: Progress) -> list[str]:
    """Problems of the feature store in `folder`, even if it cannot be opened."""
    try:
        store = FeatureStore.open(folder)
    except PermafrostError as error:
        return [str(error)]
    return [damage.problem for damage in verify(store, progress)]
