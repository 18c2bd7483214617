"""What a linear method is: the vectors it may read, the classifier, and what is chosen on dev."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from permafrost.stages.bounds import MAX_SEED, MAX_STEPS, MAX_TEXTS
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.metrics.vector_map import MAP_TEXTS
from permafrost.storage.quoting import quoted

Classifier = Literal["logistic", "svm"]
PairFeatures = Literal["full", "concat"]
ClassMetric = Literal["accuracy", "mcc", "f1"]

Strengths = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], Field(min_length=1)
]


class ClassifierConfig(BaseModel):
    """A linear classifier on the vectors of examples, standardised by those of train.

    Every `c` is fitted on train and the one with the best metric on dev kept; of equal ones the smaller.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    classifier: Classifier = "logistic"
    """`logistic`: a (multinomial) logistic regression, solved by L-BFGS; `svm`: a linear support vector
    machine with squared hinge loss, one against the rest, whose intercept is regularised too, as in
    LIBLINEAR. Both with an L2 penalty."""
    c: Strengths = (0.01, 0.1, 1.0, 10.0)
    """Inverse regularisation strengths, of which one is chosen."""
    pair_features: PairFeatures = "full"
    """What the classifier sees of two vectors u and v: `full` is [u, v, |u - v|, u * v], as InferSent has it
    (Conneau et al. 2017, section 3.1); `concat` is [u, v], as GLOT's classifier has it."""
    metric: ClassMetric = "accuracy"
    """Compared on dev and reported; `f1` is that of class 1 of two."""
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` is the control: the labels of train and of dev are permuted, test is untouched."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seeds that permutation; nothing else is random."""
    max_iter: int = Field(default=5000, ge=1, le=MAX_STEPS)
    """The maximum number of solver steps; `converged` says whether it needed fewer."""
    n_map_texts: int = Field(default=MAP_TEXTS, ge=0, le=MAX_TEXTS)
    """The maximum number of test texts on the map of vectors, spread evenly; for classes of single texts."""


class LinearConfig(ClassifierConfig):
    """A linear classifier on frozen vectors, of which dev chooses too.

    Every pair of `vectors` and `c` is fitted on train and the one with the best metric on dev kept; of
    equal ones the earlier vectors, then the smaller c.
    """

    vectors: tuple[EmbedConfig, ...] = Field(min_length=1)
    """Ways to make the vectors, of which one is chosen."""

    @field_validator("vectors")
    @classmethod
    def _vectors_of_any_text(cls, vectors: tuple[EmbedConfig, ...]) -> tuple[EmbedConfig, ...]:
        for config in vectors:
            if config.is_chosen:
                raise ValueError(
                    f"layers {quoted(config.layers)} are ranked on graded pairs, and a task with classes has "
                    "none; list the candidates instead, of which dev chooses one, such as [4, 5, 6] or "
                    "[last, half]"
                )
            if config.whitening is not None:
                raise ValueError(
                    "whitening is fitted on the texts of one corpus and not kept, so the classifier could "
                    "not be applied to other texts; leave it out"
                )
        return vectors
