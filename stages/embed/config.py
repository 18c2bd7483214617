"""How cached rows become one vector per text: method, layers, combination, finishing."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.embed.aggregations.aggregation import AGGREGATIONS, Method, Of
from permafrost.stages.embed.layer_sets import LAYER_SETS
from permafrost.stages.extraction.capture import (
    LAYER_WORDS,
    CaptureItem,
    Index,
    LayersText,
    What,
)
from permafrost.stages.extraction.presets import htp_settings
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Combine = Literal["average", "concatenate"]

AUTO = "auto"
CHOSEN_LAYERS = {AUTO: None, "best": 1}
"""Words for layers that dev chooses, and the largest number of them that is combined; None for any."""
_LAYER = re.compile(rf"{LAYER_WORDS}|htp")
_ALONE = ("default", *CHOSEN_LAYERS)


class WhiteningConfig(BaseModel):
    """Whitening fitted on the training texts, after Su et al., "Whitening Sentence Representations for
    Better Semantics and Faster Retrieval", section 3. Unlike there, n training texts give at most n - 1
    directions, and the floor `eps` bounds how much a direction is scaled in which they hardly vary.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_components: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Directions kept, those of the largest variance first; None for all that the training texts span."""
    eps: float = Field(default=1e-6, gt=0, lt=1)
    """Directions whose variance is below this share of the largest count as if they had that share."""


class EmbedConfig(BaseModel):
    """How cached rows become one vector per text. Every field changes the vectors.

    `hs`, `va`, `wva` and `aligned_wva` are those of the Value Aggregation paper (sections 4.1, 6.1 and
    6.2); `hs` is `mean` over hidden states and `va` is `mean` over values, with all blocks as default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = Field(default_factory=lambda: AGGREGATIONS.validate({"kind": "mean"}))
    """`first`: the first token of the span; `last`: the last token of the input, as prompts are read
    out; `mean`, `max`, `weighted_mean` (token i of n weighs i / (1 + ... + n), as in SGPT): over the
    span. `wva`: the values of all tokens of the input, weighted by the readout token's attention row,
    heads side by side; `aligned_wva`: that through the block's output projection, bias included."""
    layers: LayersText = "default"
    """`all` (blocks 1..L), `half` (L // 2 .. L), `last` (`final` where there is one, else block L), `final`,
    indices and ranges, separated by commas; 0, the embedding output, only if it is asked for. `default`
    is `last` for the poolings and `all` for hs, va, wva and aligned_wva. `auto`: those that `choose_layers`
    finds best together; `best`: the single one. -1 is block L before any final norm, -2 the block below;
    `htp` the block that HTP's table 9 has. A name of `LAYER_SETS`, such as `va-llama-2-7b`, stands for its
    blocks."""
    chosen_by: Literal["spearman", "pearson"] = "spearman"
    """By which correlation of the cosines with graded dev pairs `auto` and `best` are chosen."""
    of: Of = "hidden"
    """What first, last, mean, max and weighted_mean pool."""
    combine: Combine = "average"
    """Over layers, and over the members of a prompt ensemble."""
    normalise: Literal["none", "l2"] = "none"
    """Applied last."""
    whitening: WhiteningConfig | None = None
    """Directions of equal variance, from the training texts; none if not given."""

    @field_validator("layers")
    @classmethod
    def _layers_are_known_words(cls, layers: str) -> str:
        layers = LAYER_SETS.get(layers.strip(), layers)
        parts = [part.strip() for part in layers.split(",")]
        if parts[0] in _ALONE and len(parts) == 1:
            return parts[0]
        for part in parts:
            if not _LAYER.fullmatch(part):
                raise ValueError(
                    f"{quoted(part)} is not a layer; write all, half, last, final, an index such as 4 or -2 "
                    f"or a range such as 4-6, separated by commas, or one of "
                    f"{', '.join((*_ALONE, *LAYER_SETS))} alone"
                )
        return ",".join(parts)

    @model_validator(mode="after")
    def _something_is_chosen(self) -> "EmbedConfig":
        if self.chosen_by != "spearman" and not self.is_chosen:
            raise ValueError(
                f"chosen_by is {quoted(self.chosen_by)}, but layers is {quoted(self.layers)}, which leaves "
                f"nothing to choose; leave it out, or set layers to {' or '.join(CHOSEN_LAYERS)}"
            )
        return self

    @model_validator(mode="after")
    def _values_are_poolable(self) -> "EmbedConfig":
        self.method.what(self.of)
        return self

    @property
    def is_chosen(self) -> bool:
        """Whether dev chooses the layers."""
        return self.layers in CHOSEN_LAYERS

    @property
    def what(self) -> What:
        """What is pooled or aggregated."""
        return self.method.what(self.of)


def layers_of(config: EmbedConfig, sizes: BackboneSizes) -> tuple[Index, ...]:
    """The layers of a backbone of these sizes, ascending, each once; 1..L to choose from.

    Raises:
        InputError: a layer that this backbone does not have.
    """
    words = config.layers
    if words == "default":
        words = config.method.default_layers
    layers: set[Index] = {
        i for part in words.split(",") for i in _indices(part, config.what, sizes)
    }
    numbers: list[Index] = [*sorted(i for i in layers if i != "final")]
    return (*numbers, *(["final"] if "final" in layers else []))


def required_arrays(config: EmbedConfig, sizes: BackboneSizes) -> tuple[str, ...]:
    """Names of the token-level arrays to capture, by kind and then by layer.

    Raises:
        InputError: a layer that this backbone does not have.
    """
    kinds = config.method.stored(config.of)
    return tuple(f"{kind}/{i}" for kind in kinds for i in layers_of(config, sizes))


def with_layers(config: EmbedConfig, layers: tuple[int, ...]) -> EmbedConfig:
    """The config with `auto` or `best` replaced by the layers chosen."""
    named = ",".join(map(str, layers))
    return config.model_copy(update={"layers": named, "chosen_by": "spearman"})


def require_definite(config: EmbedConfig) -> None:
    """Raises: InputError: the layers are still to be chosen."""
    if config.is_chosen:
        raise InputError(
            f"layers is {quoted(config.layers)}, but nothing was chosen yet; choose on development pairs "
            "with choose_layers and give the result (on the command line: --dev FILE)"
        )


def _indices(part: str, what: What, sizes: BackboneSizes) -> list[Index]:
    if part == "all" or part in CHOSEN_LAYERS:
        return list(range(1, sizes.n_layers + 1))
    if part == "last":
        return ["final" if what == "hidden" and sizes.has_final_norm else sizes.n_layers]
    if part == "htp":
        part = str(htp_settings(sizes).layer)
    return [name.index for name in CaptureItem(what=what, layers=part).names(sizes)]
