"""A trained head in a home: its parameters, and the backbone, recipe and arrays it was trained on."""

from dataclasses import dataclass
from pathlib import Path

from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors
from permafrost.stages.extraction.target import ExtractTarget, target_of_store
from permafrost.stages.fit import load_head
from permafrost.stages.fit.choice import STAGE as CHOOSE
from permafrost.stages.fit.trained import read_record
from permafrost.stages.freeze import Unified, heads_with_vectors, load_pair_fit
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.quoting import quoted

LAYERS = "layers"
"""`kind` in the config of a fit whose head reads every layer."""


@dataclass(frozen=True)
class FittedHead:
    """A head and what it was trained on."""

    ref: ArtifactRef
    folder: Path
    """Of the artifact."""
    vectors: HeadVectors | LatentVectors
    target: ExtractTarget


def find_fitted(home: Path, name: str, backbone: str | None) -> FittedHead:
    """The trained head that `name` means; reads and hashes the backbone's files, loads no weights.

    Args:
        home: where artifacts and feature stores lie.
        name: `fit/<key>`, or `choose/<key>` of a grid, or the beginning of a key.
        backbone: where the backbone is now; None for where it was.

    Raises:
        NotFoundError: no such artifact, or its feature store is gone.
        InputError: not a fit, or a head that scores pairs and has no vector for a text.
        IdentityMismatchError: the backbone found is another one; names both digests.
    """
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    if ref.stage not in ("fit", CHOOSE):
        raise InputError(
            f"{name} is a {ref.stage} artifact; give one of stage fit, a trained head, or of stage {CHOOSE}, "
            "the best of a grid"
        )
    spec, folder = artifacts.manifest(ref).spec, artifacts.open(ref)
    if ref.stage == CHOOSE:
        # It holds the head itself; what that was trained on, its fit knows.
        fitted = parse_ref(spec.inputs[read_record(folder)["candidate"]])
        spec = artifacts.manifest(fitted).spec
    read = [i.split("/", 2)[1:] for i in spec.inputs if i.startswith("features/")]
    of_layers = spec.config.get("kind") == LAYERS
    arrays = tuple(array for _, array in read)
    vectors = (
        load_latent_head(folder, arrays, str(ref)) if of_layers else HeadVectors(load_head(folder))
    )
    store = FeatureStore.open(store_folder(home, read[0][0]))
    used = vectors.arrays if isinstance(vectors, LatentVectors) else (vectors.head.layer,)
    return FittedHead(ref, folder, vectors, target_of_store(store.record, used, backbone))


def load_latent_head(folder: Path, arrays: tuple[str, ...], name: str) -> LatentVectors:
    """A head on the latents of every layer, if it has a vector for a text.

    Raises:
        InputError: it scores pairs of texts and has none.
    """
    result = load_pair_fit(folder)
    if not result.config.head.has_vector:
        raise InputError(
            f"the head of {name} is of kind {quoted(result.config.head.kind)}, which scores pairs of texts "
            "and has no vector for a single one; among the heads on every layer only "
            f"{heads_with_vectors()} have"
        )
    head = result.head()
    assert isinstance(head, Unified), "what heads with a vector build"
    return LatentVectors(head, arrays)
