"""A linear classifier on the vectors of a head, trained or as it was drawn.

Source: GLOT, table 8, has a linear support vector machine on frozen vectors of GLOT, "with no classifier head
trained", and does not say what those of an untrained one are worth, nor on what GLOT was trained without a
classifier. Here the head is trained with one, which is dropped; the head as it was drawn is the control.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.linear.config import ClassifierConfig
from permafrost.stages.linear.fitting import LinearResult, MadeVectors, fit_classifier
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader

if TYPE_CHECKING:
    from permafrost.stages.fit.trained import LoadedHead

Weights = Literal["trained", "untrained"]


class OnHeadConfig(ClassifierConfig):
    """A linear classifier on the vectors of a head, before the head's own classifier."""

    untrained: FitConfig | None = None
    """The fit whose head is read as it is drawn from the fit's seed; None for a trained head, which is an
    input."""


def drawn_head(config: FitConfig, d_in: int, corpus: Corpus) -> LoadedHead:
    """The head with which a fit on a corpus begins, at epoch 0.

    Args:
        config: of the fit.
        d_in: width of the array that it reads.
        corpus: a task with classes.
    """
    from permafrost.stages.fit.models import TaskFacts
    from permafrost.stages.fit.trained import LoadedHead

    return LoadedHead(config, d_in, TaskFacts(corpus.task, corpus.label_names), 0, float("nan"))


def run_on_head(
    config: OnHeadConfig,
    head: LoadedHead,
    reader: FeatureReader,
    corpus: Corpus,
    progress: Progress,
    device: str = "cpu",
) -> LinearResult:
    """Fit a classifier on the vectors of a head for every text of a corpus, chosen on dev.

    `n_parameters` of the metrics counts the classifier alone, as the head's are not fitted here.

    Args:
        config: the classifier.
        head: trained, or see `drawn_head`.
        reader: of the array that the head reads, for the texts of the corpus in their order.
        corpus: a task with classes.
        progress: told the texts, then the candidates.
        device: where the head computes.

    Raises:
        InputError: see `fit_classifier`.
    """
    import torch

    from permafrost.stages.embed.head import embed_with_head

    vectors = embed_with_head(head.to(torch.device(device)), reader, progress)
    return fit_classifier(config, [MadeVectors(vectors, None)], corpus, progress)
