"""Feature stores of adapted backbones, and the names that they have before their weights exist.

Keys are computed before anything runs, so that a key cannot hold the id of a store whose backbone is still to
be trained. In its place it holds a name: the key of the artifact of stage `store` that says, once the weights
are there, what the store's identity is.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.keys import KEY_LENGTH
from permafrost.storage.replica import public_name

STORE = "store"
"""The stage that finds the identity of such a store."""
RECORD = "store.json"
ADAPT = "adapt"
"""The stage that writes an adapted backbone as a model folder."""
MODEL = "model"
"""The folder in its artifact that transformers loads."""
_ADAPTED = re.compile(rf"{ADAPT}/[0-9a-f]{{{KEY_LENGTH}}}")


class AdaptedStore(BaseModel):
    """The content of the record in an artifact of stage `store`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: StoreIdentity
    backbone: str
    """`adapt/<key>`: the artifact that holds the backbone."""


def adapted_store(artifacts: ArtifactStore, name: str) -> AdaptedStore | None:
    """What the store of this name is; None if no artifact says so (yet).

    Raises:
        CorruptDataError: the artifact is damaged.
    """
    ref = ArtifactRef(stage=STORE, key=name)
    if not artifacts.is_done(ref):
        return None
    return load_adapted_store(artifacts.open(ref))


def names_of_store(artifacts: ArtifactStore, store_id: str) -> frozenset[str]:
    """What keys of a home call a store: its id, and names that one of an adapted backbone had before.

    Raises:
        CorruptDataError: an artifact that says which store it is is damaged.
    """
    adapted = {ref.key: adapted_store(artifacts, ref.key) for ref in artifacts.refs(STORE)}
    same = (k for k, known in adapted.items() if known and known.identity.store_id == store_id)
    return frozenset({store_id, *same})


def load_adapted_store(folder: Path) -> AdaptedStore:
    """The record in the folder of an artifact.

    Raises:
        CorruptDataError: it is none.
    """
    try:
        return AdaptedStore.model_validate(read_json(folder / RECORD))
    except ValidationError as error:
        raise CorruptDataError(
            f"{folder / RECORD} does not describe a feature store: {error}"
        ) from error


def known_ids(artifacts: ArtifactStore, stores: Iterable[tuple[str, StoreIdentity]]) -> list[str]:
    """Ids of stores, left out those of backbones that are not trained yet.

    Args:
        artifacts: of the home.
        stores: id or name of each, and its identity, as far as it was known when the name was given.
    """
    ids: list[str] = []
    for name, planned in stores:
        known = adapted_store(artifacts, name)
        if known is not None:
            ids.append(known.identity.store_id)
        elif name == planned.store_id:
            ids.append(name)
    return ids


def open_store(home: Path, name: str) -> FeatureStore:
    """A feature store by its id, or, that of an adapted backbone, by its name in keys.

    Raises:
        NotFoundError: there is none.
        CorruptDataError: it is damaged.
    """
    known = adapted_store(ArtifactStore(home), name)
    if known is None:
        return FeatureStore.open(store_folder(home, name))
    return FeatureStore.open(store_folder(home, known.identity.store_id), expect=known.identity)


def backbone_place(home: Path, source: str) -> str:
    """Where a recorded backbone lies: one that was adapted, in the home; any other at its source.

    Raises:
        NotFoundError: the adapted backbone is not in the home (any more).
        CorruptDataError: one of its files is damaged.
    """
    if not _ADAPTED.fullmatch(source):
        return source
    try:
        return str(ArtifactStore(home).open(parse_ref(source)) / MODEL)
    except NotFoundError as error:
        raise NotFoundError(
            f"the adapted backbone {source} is not under {public_name(home)} any more; run its "
            "experiment again, which trains nothing that is still there, or say where a copy of its folder is"
        ) from error


def backbone_of_store(store: FeatureStore, given: str | None) -> str | None:
    """Where the backbone of a store is: as given, else in the home if it was adapted there; None for where
    the store's record says. Raises as `backbone_place`."""
    source = store.record.backbone["source"]
    if given is not None or not _ADAPTED.fullmatch(source):
        return given
    return backbone_place(store.root.parent.parent, source)
