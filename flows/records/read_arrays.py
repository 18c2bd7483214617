"""Which arrays of a feature store the artifacts of a run extracted or read."""

from collections.abc import Iterable

from permafrost.flows.graph import FEATURES
from permafrost.storage.adapted_stores import STORE
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.keys import digest

EXTRACT = "extract"


def arrays_read(
    artifacts: ArtifactStore, names: frozenset[str], refs: Iterable[str]
) -> frozenset[str] | None:
    """Arrays of the store of these names that artifacts extracted or read; None if one cannot tell."""
    found, adapted = set[str](), {f"{STORE}/{name}" for name in names}
    for ref in refs:
        try:
            spec = artifacts.manifest(parse_ref(ref)).spec
        except (CorruptDataError, NotFoundError):
            return None
        for name in spec.inputs:
            store, _, array = name.removeprefix(FEATURES).partition("/")
            if name.startswith(FEATURES) and store in names:
                found.add(array)
        if spec.stage != EXTRACT:
            continue
        if digest(spec.config.get("store")) in names or not adapted.isdisjoint(spec.inputs):
            found.update(spec.config.get("arrays", ()))
    return frozenset(found)
