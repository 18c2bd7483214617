"""Logit lens: which later tokens can be read off a vector with the backbone's own unembedding?

Source: Value Aggregation, appendix E: vectors of every layer through the final norm and the unembedding,
mean reciprocal rank (MRR@100) of the true token at later offsets. The paper leaves open over which positions
the mean runs and how ties count. Here: over every token of a text, and the one before it, and a tie counts
against the vector.

Runs the backbone: a store keeps the attention row of the readout token only, and this needs every token's.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor

from permafrost.stages.corpus.text_sample import TextSample, choose_texts
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.recipes import Recipe, encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.extraction.token_budget import batches
from permafrost.stages.extraction.unembedding import Unembedding, read_unembedding
from permafrost.stages.probes import Point, ProbeCurves
from permafrost.stages.token_prediction.prefixes import require_prefixes
from permafrost.stages.token_prediction.ranks import (
    NOWHERE,
    load_ranked,
    reciprocal_ranks,
    save_ranked,
    target_ranks,
)
from permafrost.stages.token_prediction.targets import following_tokens
from permafrost.stages.token_prediction.vectors import Vector, token_vectors
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress

BATCH_TOKENS = 2048
"""Padded tokens that go through the backbone at a time; the ranks do not depend on it beyond rounding."""

_Cell = tuple[int, int]
"""Offset, layer."""


class LogitLensConfig(TextSample):
    """Whose vectors are read, and how far ahead."""

    vector: Vector = "hidden"
    offsets: tuple[PositiveInt, ...] = Field(default=(1, 2, 3, 5, 10), min_length=1)
    """1 is the next token."""
    cutoff: PositiveInt = 100
    """A token of a worse rank counts as not found."""


@dataclass(frozen=True)
class LensScores:
    """Mean reciprocal ranks by layer and offset."""

    table: pa.Table
    """layer (int64), offset (int64), mrr (float64), n (int64): tokens asked for."""
    cutoff: int

    def best(self, offset: int) -> tuple[int, float]:
        """Layer with the highest MRR, the first of equals, and that MRR: the figure that the paper gives for
        a kind of vector. It is picked on the very scores it is one of."""
        rows = [row for row in self.table.to_pylist() if row["offset"] == offset]
        best = max(rows, key=lambda row: (row["mrr"], -row["layer"]))
        return best["layer"], best["mrr"]

    @property
    def curves(self) -> ProbeCurves:
        """One per offset, over layers."""
        points = [
            Point(
                f"MRR@{self.cutoff} of token +{row['offset']}",
                "share",
                float(row["layer"]),
                str(row["layer"]),
                row["mrr"],
            )
            for row in self.table.to_pylist()
        ]
        return ProbeCurves("layer", tuple(points))

    def save(self, folder: Path) -> None:
        """Write lens.parquet, and the curves."""
        save_ranked(self.table, self.cutoff, folder / "lens.parquet")
        self.curves.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "LensScores":
        """Read what `save` wrote."""
        return cls(*load_ranked(folder / "lens.parquet"))


def logit_lens(
    config: LogitLensConfig,
    backbone: Backbone,
    recipe: Recipe,
    max_length: int,
    texts: Sequence[str],
    progress: Progress,
) -> LensScores:
    """Rank the tokens that follow every token of a sample of the texts.

    Args:
        config: whose vectors, and which texts.
        backbone: a decoder whose checkpoint holds its unembedding.
        recipe: resolved for the backbone; one under which no token sees what follows it.
        max_length: tokens per input at most; what is beyond is neither seen nor asked for.
        texts: of the corpus.
        progress: told of every batch.

    Raises:
        InputError: an encoder, a recipe that shows later tokens to earlier ones, no unembedding, no text
            long enough, or no token at an offset.
    """
    require_prefixes(recipe, backbone.sizes)
    unembedding = read_unembedding(backbone.files).to(backbone.device)
    chosen = sorted(choose_texts(texts, config), key=len)
    encoded = encode(recipe, backbone.tokenizer, chosen, max_length)
    sums, counts = defaultdict[_Cell, float](float), Counter[_Cell]()
    progress.start("logit lens", len(encoded), "texts")
    try:
        for indices in batches(encoded.token_ids.lengths, BATCH_TOKENS):
            part = encoded.take(indices)
            targets = following_tokens(
                part.token_ids, part.span_start, part.span_end, config.offsets
            )
            for layer, rows in token_vectors(backbone, part, recipe, config.vector):
                ranks = _ranks(backbone, unembedding, rows, targets)
                for offset, ranks_at in zip(config.offsets, ranks, strict=True):
                    sums[offset, layer] += float(reciprocal_ranks(ranks_at, config.cutoff).sum())
                    counts[offset, layer] += len(ranks_at)
            progress.advance(len(indices))
    finally:
        progress.finish()
    return _scores(config, sums, counts)


def require_offsets(
    config: LogitLensConfig, target: ExtractTarget, recipe: Recipe, texts: Sequence[str]
) -> None:
    """Check that `logit_lens` will find a token at every offset; reads the sample's texts as tokens.

    Raises:
        InputError: no text long enough, or no token at an offset.
    """
    chosen = choose_texts(texts, config)
    encoded = encode(recipe, target.tokenizer, chosen, target.max_length)
    targets = following_tokens(
        encoded.token_ids, encoded.span_start, encoded.span_end, config.offsets
    )
    for offset, column in zip(config.offsets, targets.T, strict=True):
        if (column == NOWHERE).all():
            raise _too_short(config, offset)


def _too_short(config: LogitLensConfig, offset: int) -> InputError:
    return InputError(
        f"no text has a token {offset} tokens after another one; raise min_words "
        f"({config.min_words}) or leave this offset out"
    )


def _ranks(
    backbone: Backbone, unembedding: Unembedding, rows: Tensor, targets: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """By offset the ranks of the tokens that there are."""
    has_target = (targets != NOWHERE).any(axis=1)
    wanted = torch.from_numpy(targets[has_target]).to(rows.device)
    normed = _normed(backbone, rows[torch.from_numpy(has_target).to(rows.device)])
    ranks = target_ranks(normed, unembedding, wanted).cpu().numpy()
    return [column[column > 0] for column in ranks.T]


def _normed(backbone: Backbone, rows: Tensor) -> Tensor:
    norm = backbone.family.norm_module(backbone.model) if backbone.sizes.has_final_norm else None
    if norm is None:
        return rows
    return cast(Tensor, norm(rows.to(backbone.dtype)))


def _scores(
    config: LogitLensConfig, sums: Mapping[_Cell, float], counts: Counter[_Cell]
) -> LensScores:
    if without := [offset for (offset, _), n in counts.items() if not n]:
        raise _too_short(config, without[0])
    cells = sorted(counts)
    columns = {
        "layer": pa.array([layer for _, layer in cells], pa.int64()),
        "offset": pa.array([offset for offset, _ in cells], pa.int64()),
        "mrr": pa.array([sums[cell] / counts[cell] for cell in cells], pa.float64()),
        "n": pa.array([counts[cell] for cell in cells], pa.int64()),
    }
    return LensScores(pa.table(columns), config.cutoff)
