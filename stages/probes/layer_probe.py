"""Scores of single layers: similarity, or segment matching, layer by layer.

Source: Value Aggregation, figure 2 (recall of a text's second half from its first, hidden states against
values), and FREEZE!, figure 1 (correlation of cosines with human scores by layer).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, model_validator

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.aggregations import AGGREGATIONS, Method
from permafrost.stages.embed.config import CHOSEN_LAYERS, EmbedConfig
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.layers import embed_ensemble, layer_vectors
from permafrost.stages.extraction.capture import Index, LayersText
from permafrost.stages.metrics.segment_matching import match
from permafrost.stages.scoring.similarity import (
    EqualCosinesError,
    SimilarityConfig,
    require_graded,
    score_pairs,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

_WITHOUT_NUMBER = (*CHOSEN_LAYERS, "default", "final", "last")
"""Names of layers that do not say which ones they are."""


class LayerProbeConfig(BaseModel):
    """Whose vectors are scored layer by layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = Field(default_factory=lambda: AGGREGATIONS.validate({"kind": "hs"}))
    """How a text's vector is made of each layer."""
    of: Literal["hidden", "values"] = "hidden"
    """The tensor that first, last, mean, max and weighted_mean pool."""
    layers: LayersText = "all"
    """Which layers: `all` (1 to L), `half`, indices and ranges."""

    @model_validator(mode="after")
    def _layers_have_numbers(self) -> "LayerProbeConfig":
        _ = self.embed_config  # layers that nothing is called are refused there
        parts = [part.strip() for part in self.layers.split(",")]
        if named := [part for part in parts if part in _WITHOUT_NUMBER]:
            raise ValueError(
                f"layers is {quoted(self.layers)}, but this probe scores layers by their number, and "
                f"{named[0]} has none; write all, half, indices or ranges"
            )
        return self

    @property
    def embed_config(self) -> EmbedConfig:
        """The method over all layers, whose parts are scored one by one."""
        return EmbedConfig(method=self.method, of=self.of, layers=self.layers)


@dataclass(frozen=True)
class LayerScores:
    """Scores by layer."""

    table: pa.Table
    """Columns score: its name (string), layer (int64), value (float64)."""

    choice: ClassVar[Mapping[str, str | float]] = {}
    """Nothing is chosen."""

    def save(self, folder: Path) -> None:
        """Write layers.parquet."""
        pq.write_table(self.table, folder / "layers.parquet")

    @classmethod
    def load(cls, folder: Path) -> "LayerScores":
        """Read what `save` wrote."""
        return cls(pq.read_table(folder / "layers.parquet"))


def probe_layers(
    config: LayerProbeConfig,
    prompt_features: Sequence[Features],
    corpus: Corpus,
    progress: Progress,
) -> LayerScores:
    """Score the vectors of every layer separately.

    A similarity corpus gives the Spearman correlation on its test pairs, 0 for a layer whose cosines are all
    equal; an unlabelled corpus of pairs gives
    the recall of the second text among all second texts, and the mean reciprocal rank. These scores describe
    a backbone; nothing is chosen by them.

    Raises:
        InputError: the corpus is of another kind.
    """
    require_probed(corpus)
    scores = _similarity if corpus.task == "similarity" else _matching
    rows = [
        (name, int(layer), value)
        for layer, vectors in _by_layer(config.embed_config, prompt_features, progress)
        for name, value in scores(vectors, corpus).items()
    ]
    names, layers, values = zip(*rows, strict=True)
    columns = {"score": pa.array(names), "layer": pa.array(layers), "value": pa.array(values)}
    return LayerScores(pa.table(columns))


def require_probed(corpus: Corpus) -> None:
    """Check that layers can be probed on a corpus.

    Raises:
        InputError: it has neither graded test pairs nor two pairs of matching texts, or a text matches
            several.
    """
    if corpus.task == "similarity":
        require_graded(corpus)
        return
    pairs = corpus.examples.column("text_pair")
    if corpus.task != "unlabelled" or pairs.null_count:
        raise InputError(
            f"layers are probed on graded pairs or on matching segments, but this is a {corpus.task} "
            f"corpus; give one of kind similarity or segments"
        )
    for side in ("text", "text_pair"):
        texts = corpus.examples.column(side).to_pylist()
        if (n_texts := len(set(texts))) < len(texts):
            raise InputError(
                f"each text is to be matched with one other, but the {len(texts)} pairs have {n_texts} "
                f"different {'first' if side == 'text' else 'second'} texts, so that one is right for "
                "several; score searches with 'evaluations' instead"
            )
    if pairs.length() < 2:
        raise InputError(
            f"segments are matched among others, but the corpus has {pairs.length()} pair; give at least two"
        )


def _by_layer(
    config: EmbedConfig, prompt_features: Sequence[Features], progress: Progress
) -> Iterator[tuple[Index, Vectors]]:
    for parts in zip(*(layer_vectors(config, m, progress) for m in prompt_features), strict=True):
        yield parts[0][0], embed_ensemble((v for _, v in parts), config.combine)


def _similarity(vectors: Vectors, corpus: Corpus) -> dict[str, float]:
    try:
        metrics = score_pairs(SimilarityConfig(), vectors, corpus).metrics
    except EqualCosinesError:
        return {"Spearman": 0.0}
    return {"Spearman": metrics["test_spearman"]}


def _matching(vectors: Vectors, corpus: Corpus) -> dict[str, float]:
    first, second = (
        corpus.examples.column(c).to_numpy().astype(np.int64) for c in ("text", "text_pair")
    )
    return match(vectors[first], vectors[second])
