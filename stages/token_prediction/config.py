"""What is predicted from which vectors: the configs of the logit lens and of the next-token probe."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS, MAX_TEXTS
from permafrost.stages.corpus.text_sample import TextSample
from permafrost.stages.extraction.capture import CaptureItem, in_order
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.token_prediction.prefix_draws import Prefixes

Vector = Literal["hidden", "aligned_va", "aligned_wva"]
"""`hidden`: the residual stream. `aligned_wva`: values weighted by the token's own attention row, through
the block's output projection, that is the block's attention output. `aligned_va`: the mean of the values of
the token and all before it, through the same projection."""


class LogitLensConfig(TextSample):
    """Whose vectors are read, and how far ahead."""

    vector: Vector | Literal["aligned_wva_ahead"] = "hidden"
    """Which vector of a token is read: the residual stream (`hidden`), the mean of the values up to it
    (`aligned_va`), these weighted by its own attention (`aligned_wva`) or by that of the token that is asked
    for, which has read the tokens between (`aligned_wva_ahead`; needs `prefixes`). Values go through the
    output projection."""
    norm: Literal["final", "none"] = "final"
    """What stands between a vector and the unembedding."""
    prefixes: Prefixes | None = None
    """Read the vectors of the last tokens of these prefixes only; of every token if not given."""
    offsets: tuple[PositiveInt, ...] = Field(default=(1, 2, 3, 5, 10), min_length=1)
    """1 is the next token."""
    cutoff: PositiveInt = 100
    """A token of a worse rank counts as not found."""

    @model_validator(mode="after")
    def _weights_of_a_later_token_have_a_prefix(self) -> "LogitLensConfig":
        if self.vector == "aligned_wva_ahead" and self.prefixes is None:
            raise ValueError(
                "vector is 'aligned_wva_ahead', whose weights are over a prefix; give 'prefixes'"
            )
        return self


class MapConfig(BaseModel):
    """How the map is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    """Of Adam, for keys scaled to a mean square norm of 1, or of the keys that are trained."""
    batch_size: int = Field(default=256, ge=1, le=MAX_STEPS)
    """Tokens per step."""
    max_epochs: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Passes over the tokens, at most."""
    patience: int = Field(default=2, ge=1, le=MAX_STEPS)
    """Epochs without a lower loss on dev after which training ends."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Of the loss."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Of the order of the batches."""


class _Asked(BaseModel):
    """Which tokens are to be predicted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offset: PositiveInt = 1
    """1 is the next token."""
    n_tokens: int = Field(default=10_000, ge=2, le=MAX_TEXTS)
    """Of each split, at most; whole texts until there are so many."""
    cutoff: PositiveInt = 100
    """Of the mean reciprocal rank."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Another seed, another choice of texts, and of batches where something is trained."""


class LinearNextToken(_Asked, MapConfig):
    """A linear map of the vectors of each layer, or a linear softmax of its own."""

    predictor: Literal["linear"] = "linear"
    of: Literal["hidden", "values", "va"] = "hidden"
    """A token's hidden state, its attention values, or `va`: the mean of the values of all tokens of the
    input up to it, which is Value Aggregation of the prefix."""
    softmax_keys: Literal["unembedding", "trained"] = "unembedding"
    """What a token is recognised by: the rows of the backbone's own unembedding, to which a map is trained,
    or a key of each token that is trained itself, a linear softmax of width times vocabulary parameters."""
    layers: str = "all"
    """As in a capture."""

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What is read of the store, by layer.

        Raises:
            InputError: a layer that this backbone does not have.
        """
        what = "hidden" if self.of == "hidden" else "values"
        item = CaptureItem(what=what, layers=self.layers)
        return in_order(name.text for name in item.names(sizes))


class OwnNextToken(_Asked):
    """The backbone's own prediction: its final states and its unembedding, nothing trained."""

    predictor: Literal["own"] = "own"
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """What scores are divided by."""

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """What the unembedding reads."""
        return ("hidden/final" if sizes.has_final_norm else f"hidden/{sizes.n_layers}",)


class TokenFrequencies(_Asked):
    """Predicts every token by its count in train, plus one."""

    predictor: Literal["frequencies"] = "frequencies"

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """Nothing but the token ids, which every store has: the smallest array makes sure of a store."""
        return ("pooled/hidden_mean/0",)


NextTokenConfig = Annotated[
    LinearNextToken | OwnNextToken | TokenFrequencies, Field(discriminator="predictor")
]
