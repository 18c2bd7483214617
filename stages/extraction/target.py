"""The target of an extraction: a config with its names resolved, before any weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_BYTES, MAX_TEXTS
from permafrost.stages.extraction.capture import ArrayName, Capture
from permafrost.stages.extraction.encoding import encode_for
from permafrost.stages.extraction.facts import BackboneFacts, facts_of, max_length_of
from permafrost.stages.extraction.files import BackboneConfig, BackboneFiles, find_backbone
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.recipe import (
    Recipe,
    RecipeConfig,
    recipe_identity,
    recipe_of,
    resolve_recipe,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.features.identity import FloatName, StoreIdentity, require_same
from permafrost.storage.features.layout import Codec, StoreSizes, array_spec
from permafrost.storage.features.record import StoreRecord

if TYPE_CHECKING:
    import transformers


class ExtractConfig(BaseModel):
    """What is extracted. Together with the backbone's files this decides every stored number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: BackboneConfig
    recipe: RecipeConfig = PlainRecipe()
    capture: Capture
    store_dtype: FloatName = "float16"
    codec: Codec = "none"
    """Compression of new stores; an existing store keeps its own."""


BLOCK_TEXTS = 100_000
"""Texts tokenised and packed at a time, unless told."""


class ExtractRuntime(BaseModel):
    """How it is extracted. Changes results only within the tolerance that `verify --recompute` states."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    device: str = "auto"
    """Where the backbone runs: auto (the first GPU, else the CPU), cpu, cuda, cuda:1, ..."""
    batch_tokens: int = Field(default=8192, ge=1, le=MAX_TEXTS)
    """Maximum tokens of a padded batch (a single longer text is a batch of its own). Capped at 2,048 on a
    CPU, where larger batches are only slower."""
    buffer_bytes: int = Field(default=512 << 20, ge=1, le=MAX_BYTES)
    """Maximum bytes of captured arrays waiting for the disk; also bounds the batch."""
    block_texts: int = Field(default=BLOCK_TEXTS, ge=1, le=MAX_TEXTS)
    """Texts tokenised and packed at a time, so that memory does not grow with the corpus."""
    too_long: Literal["cut", "refuse"] = "cut"
    """What happens to texts longer than max_length: `cut` drops their end and counts them, `refuse` stops
    before anything is written."""
    busy: Literal["end", "wait"] = "end"
    """What happens while another process writes to the store: `end` with a message that says which one, or
    `wait` until it has finished."""


@dataclass(frozen=True)
class ExtractTarget:
    """A config with its names resolved."""

    files: BackboneFiles
    sizes: BackboneSizes
    recipe: Recipe
    max_length: int
    identity: StoreIdentity
    arrays: tuple[str, ...]
    codec: Codec

    @cached_property
    def tokenizer(self) -> transformers.PreTrainedTokenizerBase:
        """Loaded when it is first asked for, which takes seconds. Raises: InputError: it cannot be loaded."""
        return _tokenizer(self.files)

    def encoded(self, texts: Sequence[str], most: int | None = None) -> Encoded:
        """Model input of texts, of at most so many tokens if given; raises as `encode_for`."""
        longest = self.max_length if most is None else min(self.max_length, most)
        return encode_for(self.files, self.recipe, self.tokenizer, texts, longest)

    @property
    def store_sizes(self) -> StoreSizes:
        """Widths of the arrays."""
        s = self.sizes
        return StoreSizes(
            n_layers=s.n_layers, d_model=s.d_model, d_value=s.d_value, n_attn_heads=s.n_attn_heads
        )

    def width(self, array: str) -> int:
        """Number of columns of an array."""
        return array_spec(array, self.store_sizes, self.identity.storage_dtype).width or 1

    @property
    def projected_blocks(self) -> tuple[int, ...]:
        """Blocks whose output projection is stored: those whose attention rows are stored."""
        names = [ArrayName.parse(a) for a in self.arrays]
        return tuple(int(n.index) for n in names if n.what == "attention_rows")


@dataclass(frozen=True)
class ResolvedBackbone:
    """What all recipes of a backbone share: its files, its limits, and the storage format."""

    backbone: BackboneConfig
    files: BackboneFiles
    facts: BackboneFacts
    max_length: int
    store_dtype: FloatName
    codec: Codec

    @property
    def sizes(self) -> BackboneSizes:
        """Of the network."""
        return self.facts.sizes

    def target(self, recipe: Recipe, arrays: tuple[str, ...]) -> ExtractTarget:
        """The target of an extraction under `recipe`.

        Raises:
            InputError: the backbone cannot do what the recipe asks for or read as much, or there are no
                arrays.
        """
        if not arrays:
            raise InputError(
                "the capture is empty; ask for at least one array, e.g. 'hidden=all@tokens'"
            )
        max_length = self.max_length
        if recipe.max_length is not None:
            asked = self.backbone.model_copy(update={"max_length": recipe.max_length})
            max_length = max_length_of(asked, self.facts)
        # The length is the store's, whichever of the two names it.
        resolved = resolve_recipe(recipe, self.sizes).model_copy(update={"max_length": None})
        identity = StoreIdentity(
            weights_digest=self.files.weights_digest,
            tokenizer_digest=self.files.tokenizer_digest,
            recipe=recipe_identity(resolved),
            compute_dtype=self.backbone.dtype,
            storage_dtype=self.store_dtype,
            max_length=max_length,
        )
        return ExtractTarget(
            self.files,
            self.sizes,
            resolved,
            max_length,
            identity,
            arrays,
            self.codec,
        )


def resolve_backbone(
    backbone: BackboneConfig, store_dtype: FloatName, codec: Codec
) -> ResolvedBackbone:
    """Find a backbone's files and read its sizes; reads and hashes files, loads no weights.

    Raises:
        InputError: the backbone or the length cannot be used.
    """
    files = find_backbone(backbone)
    facts = facts_of(files)
    max_length = max_length_of(backbone, facts)
    return ResolvedBackbone(backbone, files, facts, max_length, store_dtype, codec)


@lru_cache(maxsize=4)
def _tokenizer(files: BackboneFiles) -> transformers.PreTrainedTokenizerBase:
    from permafrost.stages.extraction.backbone import load_tokenizer

    return load_tokenizer(files)


def resolve_target(config: ExtractConfig) -> ExtractTarget:
    """Resolve the names in a config; reads and hashes files, loads no weights.

    Raises:
        InputError: backbone, recipe, capture and length do not fit together.
    """
    base = resolve_backbone(config.backbone, config.store_dtype, config.codec)
    return base.target(config.recipe, config.capture.arrays(base.sizes))


MOVED = "; if it moved, give its folder with --backbone (backbone= in Python)"
"""End of messages on a backbone that is not where a record says."""


def target_of_store(
    record: StoreRecord, arrays: tuple[str, ...], source: str | None, advice: str = MOVED
) -> ExtractTarget:
    """The target that an existing store was made for, so that its cells can be recomputed.

    Args:
        record: content of `store.json`.
        arrays: what to compute.
        source: where the backbone is now; None if it has not moved.
        advice: end of the message if it is not where the record says.

    Raises:
        IdentityMismatchError: the backbone found there is not the one the store was made with.
    """
    revision = (record.backbone.get("revision") or "main") if source is None else "main"
    where = source or record.backbone["source"]
    name = f"{record.store_id[:12]} (backbone looked for at {where})"
    return target_of_identity(
        record.identity,
        arrays,
        where,
        revision,
        record.codec,
        name,
        advice if source is None else "",
    )


def target_of_identity(
    identity: StoreIdentity,
    arrays: tuple[str, ...],
    source: str,
    revision: str,
    codec: Codec,
    name: str,
    advice: str = "",
) -> ExtractTarget:
    """The target of a recorded identity, with the backbone found at `source`.

    Args:
        identity: of a store.
        arrays: what to compute.
        source: where the backbone is.
        revision: of a backbone on the hub.
        codec: of the store, if it has to be created again.
        name: what messages call the store.
        advice: end of the message if there is no such backbone.

    Raises:
        IdentityMismatchError: the backbone found there is a different one, or the recipe's plug-in was edited
            since; the message has both digests.
        InputError: there is no such recipe here.
    """
    backbone = BackboneConfig(
        source=source,
        revision=revision,
        dtype=identity.compute_dtype,
        max_length=identity.max_length,
    )
    try:
        files = find_backbone(backbone)
    except InputError as error:
        if not advice:
            raise
        raise type(error)(f"{error}{advice}") from error
    recipe = recipe_of(identity.recipe)
    resolved = identity.model_copy(
        update={
            "weights_digest": files.weights_digest,
            "tokenizer_digest": files.tokenizer_digest,
            "recipe": recipe_identity(recipe),
        }
    )
    require_same(identity, resolved, name)
    return ExtractTarget(
        files=files,
        sizes=facts_of(files).sizes,
        recipe=recipe,
        max_length=identity.max_length,
        identity=identity,
        arrays=arrays,
        codec=codec,
    )
