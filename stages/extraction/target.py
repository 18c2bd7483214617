"""What an extraction is for: names resolved to facts, before anything is loaded."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, TypeAdapter
from transformers import PreTrainedTokenizerBase

from stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    BackboneSizes,
    load_tokenizer,
    read_sizes,
    resolve_backbone,
    resolve_max_length,
)
from stages.extraction.capture import ArrayName, Capture
from stages.extraction.recipe import PlainRecipe, Recipe, resolve_recipe
from storage.errors import InputError
from storage.features.identity import FloatName, StoreIdentity, require_same
from storage.features.layout import Codec, StoreSizes
from storage.features.store import StoreRecord


class ExtractConfig(BaseModel):
    """What is extracted. Together with the backbone's files this decides every stored number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: BackboneConfig
    recipe: Recipe = PlainRecipe()
    capture: Capture
    store_dtype: FloatName = "float16"
    codec: Codec = "none"
    """Compression of new stores; an existing store keeps its own."""


class ExtractRuntime(BaseModel):
    """How it is extracted. Changes results only within the tolerance that `verify --recompute` states."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = "auto"
    batch_tokens: int = 8192
    """Tokens of one padded batch, at most (a single longer text makes a batch of its own). On a CPU never
    more than 2,048, where larger batches are only slower."""
    buffer_bytes: int = 512 << 20
    """Captured arrays waiting for the disk, at most; also bounds the batch."""
    block_texts: int = 100_000
    """Texts tokenised and packed at a time, so that memory does not grow with the corpus."""


@dataclass(frozen=True)
class ExtractTarget:
    """A config with its names resolved."""

    files: BackboneFiles
    sizes: BackboneSizes
    tokenizer: PreTrainedTokenizerBase
    recipe: Recipe
    max_length: int
    identity: StoreIdentity
    arrays: tuple[str, ...]
    codec: Codec

    @property
    def store_sizes(self) -> StoreSizes:
        """Widths of the arrays."""
        s = self.sizes
        return StoreSizes(
            n_layers=s.n_layers, d_model=s.d_model, d_value=s.d_value, n_attn_heads=s.n_attn_heads
        )

    @property
    def projected_blocks(self) -> tuple[int, ...]:
        """Blocks whose output projection is stored: those whose attention rows are."""
        names = [ArrayName.parse(a) for a in self.arrays]
        return tuple(int(n.index) for n in names if n.what == "attention_rows")


def resolve_target(config: ExtractConfig) -> ExtractTarget:
    """Resolve names to facts; reads and hashes files, loads no weights.

    Raises:
        InputError: backbone, recipe, capture or length do not fit together.
    """
    files = resolve_backbone(config.backbone)
    sizes = read_sizes(files)
    tokenizer = load_tokenizer(files)
    recipe = resolve_recipe(config.recipe, sizes)
    max_length = resolve_max_length(config.backbone, sizes, tokenizer)
    arrays = config.capture.arrays(sizes)
    if not arrays:
        raise InputError(
            "the capture is empty; ask for at least one array, e.g. 'hidden=all@tokens'"
        )
    identity = StoreIdentity(
        weights_digest=files.weights_digest,
        tokenizer_digest=files.tokenizer_digest,
        recipe=recipe.model_dump(mode="json"),
        compute_dtype=config.backbone.dtype,
        storage_dtype=config.store_dtype,
        max_length=max_length,
    )
    return ExtractTarget(
        files, sizes, tokenizer, recipe, max_length, identity, arrays, config.codec
    )


def target_of_store(
    record: StoreRecord, arrays: tuple[str, ...], source: str | None
) -> ExtractTarget:
    """The target that an existing store was made for, so that cells can be computed again.

    Args:
        record: content of `store.json`.
        arrays: what to compute.
        source: where the backbone is now; None for where it was.

    Raises:
        IdentityMismatchError: the backbone found there is not the one the store was made with.
    """
    identity = record.identity
    backbone = BackboneConfig(
        source=source or record.backbone["source"],
        revision=(record.backbone.get("revision") or "main") if source is None else "main",
        dtype=identity.compute_dtype,
        max_length=identity.max_length,
    )
    files = resolve_backbone(backbone)
    found = identity.model_copy(
        update={"weights_digest": files.weights_digest, "tokenizer_digest": files.tokenizer_digest}
    )
    require_same(
        identity, found, f"{record.store_id[:12]} (backbone looked for at {backbone.source})"
    )
    return ExtractTarget(
        files=files,
        sizes=read_sizes(files),
        tokenizer=load_tokenizer(files),
        recipe=TypeAdapter[Recipe](Recipe).validate_python(identity.recipe),
        max_length=identity.max_length,
        identity=identity,
        arrays=arrays,
        codec=record.codec,
    )
