"""Load the encoder of a trained head in a home, or of a training-free method."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from permafrost.stages.embed.config import EmbedConfig, require_definite, required_arrays
from permafrost.stages.encoder.answers import (
    Answers,
    LatentAnswers,
    LinearAnswers,
    head_answers,
)
from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.plugin_code import plugin_code, require_same_code
from permafrost.stages.encoder.runtime import BATCH_TOKENS, Device, runtime_on
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors, MethodVectors, TextVectors
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.target import (
    ExtractRuntime,
    ExtractTarget,
    resolve_backbone,
    target_of_store,
)
from permafrost.stages.fit.choice import STAGE as CHOOSE
from permafrost.stages.fit.trained import load_head
from permafrost.stages.freeze.layers_head import heads_with_vectors
from permafrost.stages.freeze.pair_fit import load_pair_fit
from permafrost.stages.linear.model import load_linear
from permafrost.storage.adapted_stores import backbone_of_store, open_store
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore, parse_ref
from permafrost.storage.errors import InputError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.quoting import quoted

LINEAR = "linear"
"""Stage of linear classifiers."""
LAYERS = "layers"
"""`kind` in the config of a fit whose head reads every layer."""
_STAGES = ("fit", CHOOSE, LINEAR)
_ON_HEADS = ("layers_on_heads", "linear_on_head")
"""Stages of models that read trained heads, which are used where they are scored and nowhere else."""


@dataclass(frozen=True)
class FittedHead:
    """A head and what it was trained on."""

    ref: ArtifactRef
    folder: Path
    """Folder of the artifact."""
    vectors: HeadVectors | LatentVectors | LinearAnswers
    """Of a linear classifier those of its method, which it answers from."""
    targets: tuple[ExtractTarget, ...]
    """What it reads: one, or one per prompt of an ensemble, in order."""
    code: Mapping[str, str]
    """Of the plug-ins with which it was trained."""

    @property
    def target(self) -> ExtractTarget:
        """The first; all have the same backbone."""
        return self.targets[0]


def find_fitted(home: Path, name: str, backbone: str | None) -> FittedHead:
    """Find the trained head `name`; reads and hashes the backbone's files, loads no weights.

    Args:
        home: where artifacts and feature stores lie.
        name: `fit/<key>`, `choose/<key>` of a grid, `linear/<key>`, or the beginning of a key.
        backbone: where the backbone is now; None if it has not moved.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it is none of these, it is a head that scores pairs and has no vector for a text, or it
            uses a plug-in that is not known here or whose code has changed.
        IdentityMismatchError: the backbone is a different one; the message has both digests.
    """
    made = _find(home, name)
    if made.ref.stage == LINEAR:
        return FittedHead(made.ref, made.folder, *_linear(home, made, backbone), made.code)
    vectors: HeadVectors | LatentVectors
    if made.is_of_layers:
        vectors = load_latent_head(made.folder, made.arrays, str(made.ref), made.label_range)
    else:
        vectors = HeadVectors(load_head(made.folder))
    used = vectors.arrays if isinstance(vectors, LatentVectors) else (vectors.head.layer,)
    (store,) = made.stores
    targets = (_target(home, store, used, backbone),)
    return FittedHead(made.ref, made.folder, vectors, targets, made.code)


@dataclass(frozen=True)
class FittedAnswers:
    """What was trained to answer, and what it reads."""

    ref: ArtifactRef
    answers: Answers
    targets: tuple[ExtractTarget, ...]
    """One, or one per prompt of an ensemble, in order."""


def find_answers(home: Path, name: str, backbone: str | None) -> FittedAnswers:
    """As `find_fitted`, for all that answers: heads that have no vector for a text, too.

    Raises as `find_fitted`, and InputError: a head that was trained on pairs without labels.
    """
    made = _find(home, name)
    if made.ref.stage == LINEAR:
        return FittedAnswers(made.ref, *_linear(home, made, backbone))
    (store,) = made.stores
    if not made.is_of_layers:
        answers = head_answers(load_head(made.folder))
        target = _target(home, store, (answers.head.layer,), backbone)
        return FittedAnswers(made.ref, answers, (target,))
    result = load_pair_fit(made.folder)
    answers = LatentAnswers(
        result.head(),
        made.arrays,
        made.label_range,
        config=result.config,
        d_model=result.d_model,
    )
    return FittedAnswers(made.ref, answers, (_target(home, store, made.arrays, backbone),))


def _linear(
    home: Path, made: "_Trained", backbone: str | None
) -> tuple[LinearAnswers, tuple[ExtractTarget, ...]]:
    model = load_linear(made.folder)
    assert model.vectors is not None, "classifiers on heads are of a stage of their own"
    found = [_target(home, store, made.arrays, backbone) for store in made.stores]
    arrays = required_arrays(model.vectors, found[0].sizes)
    targets = tuple(replace(target, arrays=arrays) for target in found)
    answers = LinearAnswers(model.vectors, found[0].sizes, len(targets), model=model)
    return answers, targets


@dataclass(frozen=True)
class _Trained:
    """An artifact of something trained on features, and what its manifest says of that."""

    ref: ArtifactRef
    folder: Path
    config: Mapping[str, Any]
    stores: tuple[str, ...]
    """Ids of the stores that it read."""
    arrays: tuple[str, ...]
    """Read of the first of them, in order."""
    code: Mapping[str, str]
    """Of the plug-ins with which it was trained."""

    @property
    def is_of_layers(self) -> bool:
        """Whether it is a head that reads every layer."""
        return self.config.get("kind") == LAYERS

    @property
    def label_range(self) -> tuple[float, float]:
        """Lowest and highest label, as the method of a head on every layer was told."""
        low, high = self.config.get("label_range", (0.0, 1.0))
        return float(low), float(high)


def _find(home: Path, name: str) -> _Trained:
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    spec = artifacts.manifest(ref).spec
    if ref.stage not in _STAGES:
        behind = [i for i in spec.inputs if i.partition("/")[0] in (*_STAGES, "finetune")]
        if ref.stage in _ON_HEADS:
            raise InputError(
                f"{name} is a {ref.stage} artifact, a model on other heads, which can neither answer nor "
                "give vectors outside its experiment; read its scores there"
                f"{''.join(f'. It reads {i}, which can, but gives its own answers' for i in behind)}"
            )
        raise InputError(
            f"{name} is a {ref.stage} artifact; give one of stage fit, a trained head, of stage {CHOOSE}, "
            f"the best of a grid, or of stage {LINEAR}, a linear classifier"
            f"{''.join(f'; it was made from {i}' for i in behind)}"
        )
    folder = artifacts.open(ref)
    if ref.stage == CHOOSE:
        # A choice holds the head itself; its training data is recorded with its fit.
        fitted = parse_ref(artifacts.manifest(ref).summary["fit"])
        spec = artifacts.manifest(fitted).spec
    require_same_code(str(ref), spec.code)
    read = [i.split("/", 2)[1:] for i in spec.inputs if i.startswith("features/")]
    stores = tuple(dict.fromkeys(store for store, _ in read))
    arrays = tuple(array for store, array in read if store == stores[0])
    return _Trained(ref, folder, spec.config, stores, arrays, plugin_code(spec.code))


def _target(
    home: Path, store_id: str, arrays: tuple[str, ...], backbone: str | None
) -> ExtractTarget:
    """What a store was made for, with the backbone found."""
    store = open_store(home, store_id)
    target = target_of_store(store.record, arrays, backbone_of_store(store, backbone))
    if backbone is None:
        # By the name that it has in the home, not by a folder there.
        files = replace(target.files, source=store.record.backbone["source"])
        target = replace(target, files=files)
    return target


def load_latent_head(
    folder: Path,
    arrays: tuple[str, ...],
    name: str,
    label_range: tuple[float, float] = (0.0, 1.0),
) -> LatentVectors:
    """Load a head on the latents of every layer that has a vector for a text.

    Raises:
        InputError: it scores pairs of texts and has none.
    """
    result = load_pair_fit(folder)
    if not result.config.head.has_vector:
        raise InputError(
            f"the head of {name} is of kind {quoted(result.config.head.kind)}, which scores pairs of texts "
            "and has no vector for a single one; among the heads on every layer only "
            f"{heads_with_vectors()} have. Score pairs with 'permafrost predict'"
        )
    return LatentVectors(result.coder(), arrays, label_range, config=result.config)


def load_encoder(
    home: Path | str,
    artifact: str,
    backbone: str | None = None,
    *,
    device: Device = "auto",
    batch_tokens: int = BATCH_TOKENS,
) -> Encoder:
    """The encoder of a trained head: the backbone that it was trained on, and the head.

    Args:
        home: the folder of a home.
        artifact: `fit/<key>`, or the beginning of a key, as `permafrost ls` lists them; `linear/<key>` of a
            linear classifier, whose vectors are those of its method.
        backbone: where the backbone is now; None if it has not moved.
        device: `auto` or None (the first GPU, else the CPU), a torch device, or its name.
        batch_tokens: maximum padded tokens of a batch.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: it is none of these, or a head that has no vector for a single text.
        IdentityMismatchError: the backbone is not the one the head was trained on; the message has both
            digests.
    """
    runtime = runtime_on(device, batch_tokens)
    fitted = find_fitted(Path(home), artifact, backbone)
    name = f"{fitted.ref.stage}/{fitted.ref.key[:8]}"
    return replace(assemble(fitted.targets, fitted.vectors, runtime), name=name)


def method_encoder(
    config: EmbedConfig,
    backbone: BackboneConfig,
    recipe: Recipe | None = None,
    *,
    store_dtype: FloatName = "float16",
    device: Device = "auto",
    batch_tokens: int = BATCH_TOKENS,
) -> Encoder:
    """The encoder of a training-free method.

    Args:
        config: the method, with its layers given.
        backbone: where the backbone is, its precision and the maximum length of an input.
        recipe: how a text becomes input, possibly an ensemble; `plain` if not given.
        store_dtype: dtype to which features are rounded, as in a store.
        device: `auto` or None (the first GPU, else the CPU), a torch device, or its name.
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
    return assemble(targets, vectors, runtime_on(device, batch_tokens))


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
