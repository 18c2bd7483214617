"""Which pair head of the FREEZE! family is trained, told apart by `kind`, and how.

The defaults are the final model's of the released notebooks.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.bounds import MAX_LAYERS, MAX_SEED, MAX_STEPS, MAX_WIDTH
from permafrost.stages.freeze.losses import Loss


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EncoderSizes(_Config):
    """Widths of the layer autoencoders (FREEZE!, 4.2.3)."""

    early: int = Field(default=256, ge=1, le=MAX_WIDTH)
    """Width of a code in the first half of the layers."""
    late: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Width of a code in the deep half, to which an odd middle layer belongs."""
    dropout: float = Field(default=0.1, ge=0, lt=1)


class CosineMlpHead(_Config):
    """A small network on the cosine of each layer's latents (FREEZE!, 4.2.1)."""

    kind: Literal["cosine_mlp"] = "cosine_mlp"
    hidden: int = Field(default=128, ge=1, le=MAX_WIDTH)


class SiameseHead(_Config):
    """One encoder per layer, trained from scratch, then a network on the cosines (FREEZE!, 4.2.2)."""

    kind: Literal["siamese"] = "siamese"
    d_code: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Width of every layer of an encoder."""
    hidden: int = Field(default=512, ge=1, le=MAX_WIDTH)
    """Width of the network on the cosines."""


class AutoencoderSiameseHead(_Config):
    """The encoders of layer autoencoders, then a deeper network on the cosines (FREEZE!, 4.2.3)."""

    kind: Literal["autoencoder_siamese"] = "autoencoder_siamese"
    encoders: EncoderSizes = EncoderSizes()
    hidden: int = Field(default=512, ge=1, le=MAX_WIDTH)
    n_hidden: int = Field(default=3, ge=1, le=MAX_LAYERS)
    """Hidden layers of the network on the cosines."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """In the network on the cosines."""


class UnifiedHead(_Config):
    """One embedding per text from the codes of all layers; similarity is the cosine of two.

    A reading of ours, next to `unified_projection`: codes side by side, or their mean.
    """

    kind: Literal["unified"] = "unified"
    encoders: EncoderSizes = EncoderSizes()
    join: Literal["concatenate", "average"] = "concatenate"

    @model_validator(mode="after")
    def _codes_can_be_averaged(self) -> "UnifiedHead":
        early, late = self.encoders.early, self.encoders.late
        if self.join == "average" and early != late:
            raise ValueError(
                f"codes of {early} and of {late} numbers have no mean; set encoders.early and "
                "encoders.late to one width, or join to 'concatenate'"
            )
        return self


class UnifiedProjectionHead(_Config):
    """One embedding per text: the sum over layers of each code's up-projection; similarity is a cosine.

    FREEZE!'s unified embedding (4.3, "Pooling and attention mechanisms"), which tells neither the width
    nor the training on pairs. We differ: there the autoencoders reconstruct from the sum, here they are
    pretrained layer by layer and the projections are learnt on the pairs.
    """

    kind: Literal["unified_projection"] = "unified_projection"
    encoders: EncoderSizes = EncoderSizes()
    d_embed: int = Field(default=1024, ge=1, le=MAX_WIDTH)


PairHeadConfig = Annotated[
    CosineMlpHead | SiameseHead | AutoencoderSiameseHead | UnifiedHead | UnifiedProjectionHead,
    Field(discriminator="kind"),
]


class AutoencoderConfig(_Config):
    """How layer autoencoders are pretrained on generic texts. Latents are taken as they are."""

    encoders: EncoderSizes = EncoderSizes()
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Rate of the first layer; layer i of L, from 0, has lr * (1 + i / L)."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=64, ge=1, le=MAX_STEPS)
    max_epochs: int = Field(default=250, ge=1, le=MAX_STEPS)
    dev_share: float = Field(default=0.05, gt=0, lt=1)
    """Part of the texts that is held out to choose each layer's epoch."""
    seed: int = Field(ge=0, le=MAX_SEED)
    """Initial weights, dropout, the held-out texts and the order of the batches."""


class PairFitConfig(_Config):
    """How a pair head is trained on graded pairs."""

    head: PairHeadConfig
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Learning rate, constant."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=128, ge=2, le=MAX_STEPS)
    """Pairs per step; one pair alone has no variance."""
    max_epochs: int = Field(default=150, ge=1, le=MAX_STEPS)
    loss: Loss = "log_variance"
    seed: int = Field(ge=0, le=MAX_SEED)
    """Initial weights, dropout and the order of the batches."""
    metric: Literal["pearson", "spearman"] = "pearson"
    """Which correlation on dev chooses the epoch."""
    evaluate_every: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Epochs between evaluations on dev; the last epoch is always evaluated."""
