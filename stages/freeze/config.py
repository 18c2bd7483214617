"""How heads on all layers, and the autoencoders that pretrain their encoders, are trained.

The defaults are those of the final model in the released notebooks.
"""

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS, MAX_WIDTH
from permafrost.stages.freeze.encoder_sizes import EncoderSizes
from permafrost.stages.freeze.later_fields import LaterFields
from permafrost.stages.freeze.layers_head import PairHeadConfig
from permafrost.stages.freeze.losses import PairLossConfig

Correlation = Literal["pearson", "spearman"]
"""By which heads on graded pairs are chosen and scored."""
Scale = Literal["none", "centred", "vector", "feature"]
"""`centred`: every latent minus the mean of its own numbers; `vector`: that over their standard deviation;
`feature`: every number minus its mean over the training texts, over its standard deviation there."""


class _Config(LaterFields):
    model_config = ConfigDict(frozen=True, extra="forbid")
    later_fields: ClassVar[frozenset[str]] = frozenset({"scale"})


class AutoencoderConfig(_Config):
    """How layer autoencoders are pretrained on generic texts."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"scale", "joined"})

    encoders: EncoderSizes = EncoderSizes()
    """Widths of the codes."""
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Learning rate of the first layer; layer i of L, from 0, has lr * (1 + i / L)."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Of the optimiser."""
    batch_size: int = Field(default=64, ge=1, le=MAX_STEPS)
    """Texts per step."""
    max_epochs: int = Field(default=250, ge=1, le=MAX_STEPS)
    """Passes over the texts; each layer keeps its own best."""
    dev_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the texts that is held out to choose each layer's epoch."""
    seed: int = Field(ge=0, le=MAX_SEED)
    """Seeds the initial weights, dropout, the held-out texts and the order of the batches."""
    scale: Scale = "none"
    """What is done with the latents first; `feature` takes its numbers from the texts that are trained on."""
    joined: int | None = Field(default=None, ge=1, le=MAX_WIDTH)
    """Width of one embedding of a text, the sum over layers of each code's map up, from which every decoder
    reconstructs its layer (FREEZE!, 4.3). Layers then share an embedding, so all are kept at the epoch with
    the lowest mean error. Without it every decoder has its own layer's code."""


class ClassifierConfig(_Config):
    """How encoders are pretrained to tell the relation of two texts, as the notebooks do on SNLI: by a
    perceptron on a layer's two codes and their difference, side by side."""

    joined: ClassVar[None] = None
    """Every layer is trained for itself."""

    encoders: EncoderSizes = EncoderSizes()
    """Widths of the codes."""
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Learning rate of the first layer; layer i of L, from 0, has lr * (1 + i / L)."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Of the optimiser."""
    batch_size: int = Field(default=64, ge=1, le=MAX_STEPS)
    """Pairs per step."""
    max_epochs: int = Field(default=50, ge=1, le=MAX_STEPS)
    """Passes over the pairs; each layer keeps its own best."""
    dev_share: float = Field(default=0.05, gt=0, lt=1)
    """Share of the train pairs that is held out to choose each layer's epoch; whole first texts with all
    their pairs, and what else shares a text with these is not trained on."""
    seed: int = Field(ge=0, le=MAX_SEED)
    """Seeds the initial weights, dropout, the held-out pairs and the order of the batches."""
    scale: Scale = "none"
    """What is done with the latents first; `feature` takes its numbers from the pairs that are trained on."""


class PairFitConfig(_Config):
    """How a pair head is trained on graded pairs."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"scale", "labels", "test_by_epoch"})

    head: PairHeadConfig
    optimizer: Literal["adam", "adamw"] = "adam"
    lr: float = Field(default=3e-4, gt=0, allow_inf_nan=False)
    """Learning rate, constant."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(default=128, ge=2, le=MAX_STEPS)
    """Pairs per step; one pair alone has no variance."""
    max_epochs: int = Field(default=150, ge=1, le=MAX_STEPS)
    loss: PairLossConfig = Field(default="log_variance", validate_default=True)
    seed: int = Field(ge=0, le=MAX_SEED)
    """Seeds the initial weights, dropout, the order of the batches, and the permutations of
    `labels="shuffled"`."""
    metric: Correlation = "pearson"
    """Which correlation on dev chooses the epoch."""
    evaluate_every: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Epochs between evaluations on dev; the last epoch is always evaluated."""
    scale: Scale = "none"
    """What is done with the latents first; `feature` takes its numbers from the train pairs."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is a control: the labels of train and of dev are permuted, test is untouched."""
    test_by_epoch: Literal["none", "kept"] = "none"
    """`kept`: the metric on test after every evaluated epoch, beside the fit; it is used for nothing."""
