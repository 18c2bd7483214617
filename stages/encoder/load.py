"""Load the encoder of a trained head in a home, or of a training-free method."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from permafrost.stages.embed import EmbedConfig, required_arrays
from permafrost.stages.embed.config import require_definite
from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors, MethodVectors, TextVectors
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.recipes import PlainRecipe, Recipe
from permafrost.stages.extraction.target import (
    ExtractRuntime,
    ExtractTarget,
    resolve_backbone,
    target_of_store,
)
from permafrost.stages.fit import load_head
from permafrost.stages.fit.choice import STAGE as CHOOSE
from permafrost.stages.fit.trained import read_record
from permafrost.stages.freeze import Unified, heads_with_vectors, load_pair_fit
from permafrost.stages.plugins import classes, origin_of, packages
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.quoting import quoted

LAYERS = "layers"
"""`kind` in the config of a fit whose head reads every layer."""
BATCH_TOKENS = ExtractRuntime().batch_tokens


@dataclass(frozen=True)
class FittedHead:
    """A head and what it was trained on."""

    ref: ArtifactRef
    folder: Path
    """Folder of the artifact."""
    vectors: HeadVectors | LatentVectors
    target: ExtractTarget


def find_fitted(home: Path, name: str, backbone: str | None) -> FittedHead:
    """Find the trained head `name`; reads and hashes the backbone's files, loads no weights.

    Args:
        home: where artifacts and feature stores lie.
        name: `fit/<key>`, or `choose/<key>` of a grid, or the beginning of a key.
        backbone: where the backbone is now; None if it has not moved.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it is not a fit, it is a head that scores pairs and has no vector for a text, or it uses
            a plug-in that is not known here or whose code has changed.
        IdentityMismatchError: the backbone is a different one; the message has both digests.
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
        # A choice holds the head itself; its training data is recorded with its fit.
        fitted = parse_ref(spec.inputs[read_record(folder)["candidate"]])
        spec = artifacts.manifest(fitted).spec
    require_same_code(str(ref), spec.code)
    read = [i.split("/", 2)[1:] for i in spec.inputs if i.startswith("features/")]
    of_layers = spec.config.get("kind") == LAYERS
    arrays = tuple(array for _, array in read)
    vectors = (
        load_latent_head(folder, arrays, str(ref)) if of_layers else HeadVectors(load_head(folder))
    )
    store = FeatureStore.open(store_folder(home, read[0][0]))
    used = vectors.arrays if isinstance(vectors, LatentVectors) else (vectors.head.layer,)
    return FittedHead(ref, folder, vectors, target_of_store(store.record, used, backbone))


def require_same_code(name: str, trained: Mapping[str, str]) -> None:
    """Raises: InputError: a plug-in with which the head was trained has been edited since."""
    modules = packages()
    if not any(entry.partition(":")[0] in modules for entry in trained):
        return
    for cls in classes():
        for entry, digest in fingerprint(cls, modules).definitions.items():
            if trained.get(entry, digest) != digest:
                raise InputError(
                    f"{name} was trained with other code of {entry} than {origin_of(cls)} has now, so its "
                    "vectors would be others; name the file as it was, or train the head again"
                )


def load_latent_head(folder: Path, arrays: tuple[str, ...], name: str) -> LatentVectors:
    """Load a head on the latents of every layer that has a vector for a text.

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


def load_encoder(
    home: Path | str,
    artifact: str,
    backbone: str | None = None,
    *,
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
) -> Encoder:
    """The encoder of a trained head: the backbone that it was trained on, and the head.

    Args:
        home: the folder of a home.
        artifact: `fit/<key>`, or the beginning of a key, as `permafrost ls` lists them.
        backbone: where the backbone is now; None if it has not moved.
        device: `auto` (the first GPU, else the CPU) or a torch device.
        batch_tokens: maximum padded tokens of a batch.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it is not a fit, or a head that has no vector for a single text.
        IdentityMismatchError: the backbone is not the one the head was trained on; the message has both
            digests.
    """
    fitted = find_fitted(Path(home), artifact, backbone)
    runtime = ExtractRuntime(device=device, batch_tokens=batch_tokens)
    return assemble((fitted.target,), fitted.vectors, runtime)


def method_encoder(
    config: EmbedConfig,
    backbone: BackboneConfig,
    recipe: Recipe | None = None,
    *,
    store_dtype: FloatName = "float16",
    device: str = "auto",
    batch_tokens: int = BATCH_TOKENS,
) -> Encoder:
    """The encoder of a training-free method.

    Args:
        config: the method, with its layers given.
        backbone: where the backbone is, its precision and the maximum length of an input.
        recipe: how a text becomes input, possibly an ensemble; `plain` if not given.
        store_dtype: dtype to which features are rounded, as in a store.
        device: `auto` (the first GPU, else the CPU) or a torch device.
        batch_tokens: maximum padded tokens of a batch.

    Raises:
        InputError: layers are to be chosen or do not exist, the method has whitening (which is fitted on
            texts), or the backbone or recipe cannot be used.
    """
    require_nothing_fitted(config)
    base = resolve_backbone(backbone, store_dtype, "none")
    arrays = required_arrays(config, base.sizes)
    targets = tuple(base.target(m, arrays) for m in (recipe or PlainRecipe()).members())
    vectors = MethodVectors(config, base.sizes, len(targets))
    return assemble(targets, vectors, ExtractRuntime(device=device, batch_tokens=batch_tokens))


def require_nothing_fitted(config: EmbedConfig) -> None:
    """Raises: InputError: the config has layers to choose, or whitening; both need the texts of a corpus."""
    require_definite(config)
    if config.whitening is not None:
        raise InputError(
            "whitening is fitted on the texts of a corpus, which an encoder does not have; leave it out"
        )


def assemble(
    targets: tuple[ExtractTarget, ...], vectors: TextVectors, runtime: ExtractRuntime
) -> Encoder:
    """Load the backbone that all targets share, and move the head to its device."""
    first = targets[0]
    loaded = load_backbone(first.files, first.identity.compute_dtype, runtime.device)
    if vectors.module is not None:
        vectors.module.to(loaded.device)
    return Encoder(loaded, targets, vectors, runtime)
