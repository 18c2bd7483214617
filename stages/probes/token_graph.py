"""GLOT's token graph at several thresholds: its statistics, and the score of one untrained step along it.

Source: GLOT, section 3.2 step 1 and section 4.6. The paper's table 8 has the scores of a trained GLOT at
several tau; `papers/glot/table8.yaml` is that sweep. This probe trains no head: every token
becomes the mean of its neighbours, itself included, a text's vector is the mean of its tokens, and a linear
probe (for graded pairs the cosine) scores that. So only the graph differs between thresholds: at tau 1, where
tokens have no neighbours, and below -1, where all are connected, it is the plain mean.

Axes: T tokens of a batch, E directed edges, self loops included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.features import Features
from permafrost.stages.embed.finish import require_finite
from permafrost.stages.extraction.capture import ArrayName, CaptureItem
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.probes.curves import Point, ProbeCurves, first_best
from permafrost.stages.probes.linear_probe import (
    LinearProbe,
    TaskScore,
    require_scorable,
    score_task,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import FeatureReader

_MOST_TEXTS = 256
_PAIRS = 1 << 22
"""Maximum pairs of tokens in a batch, unless one text has more."""


class TokenStates(BaseModel):
    """Which token states to read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: str
    """Stored array of token states, e.g. `hidden/6`."""

    @field_validator("layer")
    @classmethod
    def _per_token(cls, layer: str) -> str:
        name = ArrayName.parse(layer)
        if name.axis != "token" or name.what == "attention_rows":
            raise ValueError(
                f"{quoted(layer)} has no state per token; name hidden/K, hidden/final or values/K"
            )
        return layer

    def arrays(self, sizes: BackboneSizes) -> tuple[str, ...]:
        """The arrays to read from the store.

        Raises:
            InputError: this backbone does not have it.
        """
        name = ArrayName.parse(self.layer)
        item = CaptureItem(what=name.what, layers=str(name.index))
        return tuple(array.text for array in item.names(sizes))

    def reader(self, prompt_features: Sequence[Features]) -> FeatureReader:
        """The states of each text's span.

        Raises:
            InputError: an ensemble of prompts.
        """
        if len(prompt_features) != 1:
            raise InputError(
                f"the token graph of {len(prompt_features)} prompts of an ensemble was asked for; take one "
                "prompt of it"
            )
        return prompt_features[0].reader(self.layer, "span")


class TokenGraphConfig(TokenStates, LinearProbe):
    """Which token states to connect, and at which thresholds."""

    tau: tuple[FiniteFloat, ...] = Field(default=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), min_length=1)
    """Tokens with a cosine strictly above this are neighbours."""

    @field_validator("tau")
    @classmethod
    def _ascending(cls, tau: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(set(tau)))


@dataclass(frozen=True)
class GraphStatistics:
    """The graphs of all texts at one threshold; self loops do not count."""

    mean_degree: float
    """Mean number of neighbours of a token, over all tokens."""
    density: float
    """Share of connected pairs among the pairs of different tokens of a text, over all texts; 0 if none."""
    components: float
    """Mean number of connected components of a text."""
    isolated: float
    """Share of the tokens without a neighbour."""


def probe_token_graph(
    config: TokenGraphConfig,
    prompt_features: Sequence[Features],
    corpus: Corpus,
    progress: Progress,
) -> ProbeCurves:
    """Statistics of the graph at every tau and, if the corpus has labels, dev and test score of one step.

    The tau with the highest dev score is chosen, the lowest of equal ones.

    Raises:
        InputError: the recipe is an ensemble of prompts, a text has no tokens, or labels cannot be scored.
    """
    has_labels = corpus.task != "unlabelled"
    if has_labels:
        require_scorable(config, corpus)
    reader = config.reader(prompt_features)
    if empty := np.flatnonzero(reader.lengths == 0).tolist():
        raise InputError(
            f"{prompt_features[0].name(empty[0])} has no token in its span ({len(empty)} such of "
            f"{reader.n_texts} texts), so there is no graph; use another recipe"
        )
    statistics: list[GraphStatistics] = []
    scores: list[TaskScore] = []
    progress.start("probe", len(config.tau) * reader.n_texts, "texts")
    try:
        for tau in config.tau:
            statistics_of, vectors = one_step(reader, tau, progress)
            require_finite(vectors, prompt_features[0].name)
            statistics.append(statistics_of)
            if has_labels:
                scores.append(score_task(config, vectors, corpus))
    finally:
        progress.finish()
    return ProbeCurves("tau", _points(config.tau, statistics, scores))


def one_step(
    reader: FeatureReader, tau: float, progress: Progress
) -> tuple[GraphStatistics, Vectors]:
    """Statistics of the graphs at one threshold, and per text the mean of its neighbour-averaged tokens.

    This is the mean over i of the mean of i's neighbours j, so token j has the weight sum over its neighbours
    i of 1 / (n |N(i)|).
    """
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    lengths = reader.lengths
    vectors = np.empty((reader.n_texts, reader.width), dtype=np.float32)
    n_edges = n_components = n_isolated = 0
    for texts, rows in reader.in_order(_batch_size(lengths)):
        source, target = _edges(rows, tau)
        n_tokens = len(rows.data)
        neighbours_T = np.bincount(target, minlength=n_tokens)
        shares_T = np.bincount(source, weights=1 / neighbours_T[target], minlength=n_tokens)
        weights_T = shares_T / np.repeat(rows.lengths, rows.lengths)
        vectors[texts] = _weighted_sums(rows, weights_T)
        links = (np.ones(len(source), dtype=np.int8), (source, target))
        graph = sparse.coo_array(links, shape=(n_tokens, n_tokens))
        n_edges += len(source) - n_tokens
        n_components += int(connected_components(graph, directed=False, return_labels=False))
        n_isolated += int(np.sum(neighbours_T == 1))
        progress.advance(len(texts))
    n_tokens, n_pairs = int(lengths.sum()), int(np.sum(lengths * (lengths - 1)))
    statistics = GraphStatistics(
        mean_degree=n_edges / n_tokens,
        density=n_edges / n_pairs if n_pairs else 0.0,
        components=n_components / reader.n_texts,
        isolated=n_isolated / n_tokens,
    )
    return statistics, vectors


def _edges(rows: Ragged, tau: float) -> tuple[Int64[np.ndarray, " e"], Int64[np.ndarray, " e"]]:
    import torch

    from permafrost.stages.heads.graph.token_graph import edges

    tokens, offsets = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
    source, target = edges(tokens, offsets, tau).numpy()
    return source, target


def _weighted_sums(rows: Ragged, weights: Float64[np.ndarray, " t"]) -> Vectors:
    from scipy import sparse

    columns, shape = np.arange(len(weights)), (len(rows), len(weights))
    by_text = sparse.csr_array((weights.astype(np.float32), columns, rows.offsets), shape=shape)
    return by_text @ rows.data


def _batch_size(lengths: Int64[np.ndarray, " n"]) -> int:
    return max(1, min(_MOST_TEXTS, _PAIRS // int(lengths.max()) ** 2))


def _points(
    tau: Sequence[float], statistics: Sequence[GraphStatistics], scores: Sequence[TaskScore]
) -> tuple[Point, ...]:
    kept = first_best([score.dev for score in scores]) if scores else None
    points: list[Point] = []
    for i, (x, statistic) in enumerate(zip(tau, statistics, strict=True)):
        points += [
            Point("density", "share", x, f"{x:g}", statistic.density),
            Point("mean degree", "number", x, f"{x:g}", statistic.mean_degree),
            Point("components of a text", "number", x, f"{x:g}", statistic.components),
            Point("isolated tokens", "share", x, f"{x:g}", statistic.isolated),
        ]
        if scores:
            for split, value in (("dev", scores[i].dev), ("test", scores[i].test)):
                measure = f"{split} {scores[i].metric}"
                points.append(Point(measure, "share", x, f"{x:g}", value, i == kept))
    return tuple(points)
