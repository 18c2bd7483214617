"""Damage in a home, returned rather than raised, and so is what another version has written."""

from pathlib import Path

from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import Progress


def store_problems(folder: Path, progress: Progress) -> list[str]:
    """Problems of the feature store in `folder`, even if it cannot be opened."""
    try:
        store = FeatureStore.open(folder)
    except PermafrostError as error:
        return [str(error)]
    try:
        return [damage.problem for damage in verify(store, progress)]
    except InputError as error:
        return [f"{error}; the rest of this store was not checked"]


def artifact_problems(artifacts: ArtifactStore, ref: ArtifactRef) -> list[str]:
    """Problems of an artifact, even if it cannot be read."""
    try:
        return artifacts.problems(ref)
    except InputError as error:
        return [str(error)]
