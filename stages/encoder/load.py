"""Encoders from an artifact of a home, or from a method without training."""

from pathlib import Path

from permafrost.stages.embed import EmbedConfig, required_arrays
from permafrost.stages.embed.config import require_definite
from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.fitted import find_fitted
from permafrost.stages.encoder.vectors import MethodVectors, TextVectors
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.recipes import PlainRecipe, Recipe
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget, resolve_backbone
from permafrost.storage.errors import InputError
from permafrost.storage.features.identity import FloatName

BATCH_TOKENS = ExtractRuntime().batch_tokens


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
        backbone: where the backbone is now, if it moved; None for where it was.
        device: `auto` (the first GPU, else the CPU) or a torch device.
        batch_tokens: padded tokens of a batch, at most.

    Raises:
        NotFoundError: no such artifact, or its feature store is gone.
        InputError: not a fit, or a head that has no vector for a single text.
        IdentityMismatchError: another backbone than the head was trained on; names both digests.
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
    """The encoder of a method without training.

    Args:
        config: the method, its layers definite.
        backbone: where the backbone is, its precision and the length of an input.
        recipe: how a text becomes input, an ensemble too; `plain` if not given.
        store_dtype: what features are rounded to, as in a store.
        device: `auto` (the first GPU, else the CPU) or a torch device.
        batch_tokens: padded tokens of a batch, at most.

    Raises:
        InputError: layers that are to be chosen or are not there, whitening (which is fitted on texts), or
            a backbone or recipe that cannot be used.
    """
    require_nothing_fitted(config)
    base = resolve_backbone(backbone, store_dtype, "none")
    arrays = required_arrays(config, base.sizes)
    targets = tuple(base.target(m, arrays) for m in (recipe or PlainRecipe()).members())
    vectors = MethodVectors(config, base.sizes, len(targets))
    return assemble(targets, vectors, ExtractRuntime(device=device, batch_tokens=batch_tokens))


def require_nothing_fitted(config: EmbedConfig) -> None:
    """Raises: InputError: layers that are to be chosen, or whitening; both need the texts of a corpus."""
    require_definite(config)
    if config.whitening is not None:
        raise InputError(
            "whitening is fitted on the texts of a corpus, which an encoder does not have; leave it out"
        )


def assemble(
    targets: tuple[ExtractTarget, ...], vectors: TextVectors, runtime: ExtractRuntime
) -> Encoder:
    """Load the backbone that all members share, and bring the head to its device."""
    first = targets[0]
    loaded = load_backbone(first.files, first.identity.compute_dtype, runtime.device)
    if vectors.module is not None:
        vectors.module.to(loaded.device)
    return Encoder(loaded, targets, vectors, runtime)
