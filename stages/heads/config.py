"""Which head is trained: one frozen config per kind, told apart by `kind`."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from permafrost.stages.bounds import MAX_LAYERS, MAX_WIDTH
from permafrost.stages.heads.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead
from permafrost.storage.quoting import quoted


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FirstHead(_Config):
    """The first token's state ([CLS] in an encoder); nothing to train."""

    kind: Literal["first"] = "first"


class LastHead(_Config):
    """The last token's state (where a decoder has seen the whole text); nothing to train."""

    kind: Literal["last"] = "last"


class MeanHead(_Config):
    """The mean over tokens; nothing to train."""

    kind: Literal["mean"] = "mean"


class MaxHead(_Config):
    """The maximum over tokens, per dimension; nothing to train."""

    kind: Literal["max"] = "max"


class ScorerHead(_Config):
    """A weighted sum of tokens, weights from a two-layer scorer (what GLOT calls AdaPool)."""

    kind: Literal["scorer"] = "scorer"
    hidden: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of the scorer. 256 is the released code's default; the paper's 2.1M parameters at
    d_model 4096 are a width of 512."""


def _conv_of(value: object) -> str:
    return "pyg" if isinstance(value, dict | PygConv) else "ours"


class GlotHead(_Config):
    """Graph convolutions over the cosine graph of the tokens, then a scorer (GLOT)."""

    kind: Literal["glot"] = "glot"
    conv: Annotated[
        Annotated[Literal["gat", "gcn", "gin", "gin_plain"], Tag("ours")]
        | Annotated[PygConv, Tag("pyg")],
        Discriminator(_conv_of),
    ] = "gat"
    """Graph convolution; the paper's main results use graph attention. `gin` is that of the released code: a
    perceptron with batch normalisation, and a token among its own neighbours. `gin_plain` has neither.
    Others are torch-geometric's, by name."""
    n_convs: int = Field(default=2, ge=0, le=MAX_LAYERS)
    """Graph convolutions, K in the paper (appendix B: 2)."""
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Width of a convolution, where it has one to choose (appendix B: 128; the 8.92M parameters of table 5
    are 64 and K = 1)."""
    tau: float = Field(default=0.6, allow_inf_nan=False)
    """Tokens with a cosine strictly above this are neighbours (appendix B: 0.6). At 1 or more
    nothing is connected, below -1 everything is."""
    jumping: Literal["cat", "max", "mean", "none"] = "cat"
    """How the layers are fused: `cat` keeps the input beside every convolution, `max` and `mean`
    combine the convolutions element-wise, `none` takes the last one."""
    heads: int = Field(default=1, ge=1, le=MAX_WIDTH)
    """Attention heads of a graph attention, concatenated: each is `hidden / heads` wide."""
    project: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width that the tokens are projected to before the convolutions (W_in of section 3.2); None as
    in the released code. The graph is that of the raw tokens, `cat` keeps the projected ones."""

    @model_validator(mode="after")
    def _heads_that_fit(self) -> "GlotHead":
        if self.heads > 1 and self.conv != "gat":
            if isinstance(self.conv, PygConv):
                raise ValueError(
                    f"heads is {self.heads} and conv is torch-geometric's {self.conv.name}; leave heads at 1 "
                    "and give those of the convolution in conv.args"
                )
            raise ValueError(
                f"heads is {self.heads} and conv is {quoted(self.conv)}, which has no attention heads; "
                "leave heads at 1 or use conv 'gat'"
            )
        if self.hidden % self.heads:
            raise ValueError(
                f"hidden is {self.hidden} and heads is {self.heads}; attention heads are "
                "concatenated, so hidden has to be a multiple of heads"
            )
        return self

    @model_validator(mode="after")
    def _weights_that_normalise(self) -> "GlotHead":
        conv = self.conv
        if (
            isinstance(conv, PygConv)
            and conv.edges == "cosine"
            and conv.takes_weights
            and self.tau < 0
        ):
            raise ValueError(
                f"tau is {self.tau} and {conv.name} takes cosines as weights of edges, which it may add up "
                "and take the root of; use a tau of 0 or more, or edges 'one'"
            )
        return self

    @model_validator(mode="after")
    def _something_to_fuse(self) -> "GlotHead":
        if self.n_convs == 0 and self.jumping != "cat":
            raise ValueError(
                f"n_convs is 0 and jumping is {quoted(self.jumping)}, which leaves nothing to pool; without "
                "convolutions only jumping 'cat' keeps the input"
            )
        return self


class MlpHead(_Config):
    """A perceptron on every token, then their mean (the baseline of GLOT's table 15)."""

    kind: Literal["mlp"] = "mlp"
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)
    """Width of every layer, and of the pooled vector. `matched_hidden` finds the one for a number of
    parameters."""
    n_layers: int = Field(default=2, ge=1, le=MAX_LAYERS)
    """Linear layers; batch normalisation and ReLU stand between them."""


class AdaPoolHead(_Config):
    """Multi-head attention of one query, made of the tokens, to all tokens (Brothers' AdaPool).

    What GLOT calls AdaPool is `ScorerHead`.
    """

    kind: Literal["adapool"] = "adapool"
    query: Literal["mean", "first", "last"] = "mean"
    """What asks: the mean of the tokens, or one token, which is then added to the answer."""
    heads: int = Field(default=8, ge=1, le=MAX_WIDTH)
    """Attention heads."""
    d_head: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width of an attention head; None for the tokens' width divided by `heads`, as in the source,
    where it has to divide."""
    scale: Literal["width", "head"] = "width"
    """Scores are divided by the root of this: the width of all attention heads together, as in the source,
    or that of one, as in transformers. The same with a single head."""


HeadConfig = Annotated[
    FirstHead
    | LastHead
    | MeanHead
    | MaxHead
    | ScorerHead
    | GlotHead
    | MlpHead
    | AdaPoolHead
    | PygPoolHead,
    Field(discriminator="kind"),
]
