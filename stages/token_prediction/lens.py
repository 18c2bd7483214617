"""Logit lens: which later tokens can be read off a vector with the backbone's own unembedding?

Source: Value Aggregation, appendix E: the unembedding on vectors of every layer, mean reciprocal rank
(MRR@100) of the true token at later offsets, over examples of a text and the length t of a prefix; attention
sees the prefix alone. The target is the token t + k, as the text has it, whose k = 1 is the next token; the
formula is one further. The paper names no norm: `norm: none`; by default the final norm is applied, as in a
lens. It asks prefixes of 50 to 150 tokens (`prefixes`); by default every token of a text, and the one before
it, is asked. How ties count is not said: here against the vector.

Runs the backbone: a store keeps the attention row of the readout token only, and this needs every token's.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.encoding import encode_for
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe, definite_readout
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.extraction.token_budget import batches
from permafrost.stages.extraction.unembedding import Unembedding, read_unembedding
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.token_prediction.ahead import inputs_to, vectors_by_later_weights
from permafrost.stages.token_prediction.config import LogitLensConfig
from permafrost.stages.token_prediction.prefix_draws import draw_prefixes
from permafrost.stages.token_prediction.prefixes import require_prefixes
from permafrost.stages.token_prediction.ranks import (
    load_ranked,
    reciprocal_ranks,
    save_ranked,
    target_ranks,
)
from permafrost.stages.token_prediction.targets import NOWHERE, following_tokens
from permafrost.stages.token_prediction.vectors import token_vectors
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.ragged import Ragged

BATCH_TOKENS = 2048
"""Padded tokens that go through the backbone at a time; the ranks do not depend on it beyond rounding."""

_Cell = tuple[int, int]
"""Offset, layer."""


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
    _require_weights(config, recipe)
    unembedding = read_unembedding(backbone.files).to(backbone.device)
    chosen = sorted(choose_texts(texts, config), key=len)
    encoded = encode_for(backbone.files, recipe, backbone.tokenizer, chosen, max_length)
    asked = _asked(config, encoded, max_length)
    sums, counts = defaultdict[_Cell, float](float), Counter[_Cell]()
    progress.start("logit lens", len(encoded), "texts")
    try:
        for indices in batches(encoded.token_ids.lengths, BATCH_TOKENS):
            part, targets = encoded.take(indices), asked.take(indices)
            for layer, rows, wanted in _vectors(config, backbone, recipe, part, targets):
                ranks = _ranks(config, backbone, unembedding, rows, wanted)
                for offset, ranks_at in zip(config.offsets, ranks, strict=True):
                    sums[offset, layer] += float(reciprocal_ranks(ranks_at, config.cutoff).sum())
                    counts[offset, layer] += len(ranks_at)
            progress.advance(len(indices))
    finally:
        progress.finish()
    if without := [offset for (offset, _), n in counts.items() if not n]:
        raise _too_short(config, without[0], encoded, max_length)
    return _scores(config, sums, counts)


def require_offsets(
    config: LogitLensConfig, target: ExtractTarget, recipe: Recipe, texts: Sequence[str]
) -> None:
    """Check that `logit_lens` will find a token at every offset; reads the sample's texts as tokens.

    Raises:
        InputError: no text long enough, or no token at an offset.
    """
    _require_weights(config, recipe)
    chosen = choose_texts(texts, config)
    encoded = encode_for(target.files, recipe, target.tokenizer, chosen, target.max_length)
    asked = _asked(config, encoded, target.max_length)
    for offset, column in zip(config.offsets, asked.data.T, strict=True):
        if (column == NOWHERE).all():
            raise _too_short(config, offset, encoded, target.max_length)


def _require_weights(config: LogitLensConfig, recipe: Recipe) -> None:
    if config.vector == "aligned_wva_ahead" and definite_readout(recipe) != "last":
        raise InputError(
            f"vector 'aligned_wva_ahead' reads the attention of the last token of an input cut short, but "
            f"the recipe {recipe.name()} has its readout elsewhere; leave 'readout' out"
        )


def _asked(config: LogitLensConfig, encoded: Encoded, max_length: int) -> Ragged:
    """By text the tokens that each of its tokens is asked for, `[n_tokens, n_offsets]`."""
    start, end = encoded.span_start, encoded.span_end
    targets = following_tokens(encoded.token_ids, start, end, config.offsets)
    if config.prefixes is not None:
        texts, lengths = draw_prefixes(
            config.prefixes, encoded, config.offsets, config.seed, max_length
        )
        is_drawn = np.zeros(len(targets), dtype=np.bool_)
        is_drawn[encoded.token_ids.offsets[texts] + start[texts] + lengths - 1] = True
        targets[~is_drawn] = NOWHERE
    return Ragged(targets, encoded.token_ids.offsets)


def _vectors(
    config: LogitLensConfig, backbone: Backbone, recipe: Recipe, part: Encoded, asked: Ragged
) -> Iterator[tuple[int, Tensor, NDArray[np.int64]]]:
    """Layer, vectors, and the tokens that each of these is asked for."""
    if config.vector != "aligned_wva_ahead":
        for layer, rows in token_vectors(backbone, part, recipe, config.vector):
            yield layer, rows, asked.data
        return
    (flat,) = np.nonzero((asked.data != NOWHERE).any(axis=1))
    if not len(flat):
        return
    texts = np.searchsorted(asked.offsets, flat, side="right") - 1
    n_prefix = flat - asked.offsets[texts] + 1
    for column, offset in enumerate(config.offsets):
        queries = inputs_to(part, texts, n_prefix + offset)
        for chosen in batches(queries.token_ids.lengths, BATCH_TOKENS):
            wanted = np.full((len(chosen), len(config.offsets)), NOWHERE, dtype=np.int64)
            wanted[:, column] = asked.data[flat[chosen], column]
            cut = queries.take(chosen)
            for layer, rows in vectors_by_later_weights(backbone, cut, recipe, n_prefix[chosen]):
                yield layer, rows, wanted


def _too_short(
    config: LogitLensConfig, offset: int, encoded: Encoded, max_length: int
) -> InputError:
    within, longer = "", f"raise min_words ({config.min_words})"
    if encoded.truncated.any():
        within, longer = f" within max_length {max_length}", "raise max_length"
    return InputError(
        f"no text has a token {offset} tokens after another one{within}; {longer} or leave this offset out"
    )


def _ranks(
    config: LogitLensConfig,
    backbone: Backbone,
    unembedding: Unembedding,
    rows: Tensor,
    targets: NDArray[np.int64],
) -> list[NDArray[np.int64]]:
    """By offset the ranks of the tokens that there are."""
    has_target = (targets != NOWHERE).any(axis=1)
    wanted = torch.from_numpy(targets[has_target]).to(rows.device)
    read = rows[torch.from_numpy(has_target).to(rows.device)]
    normed = read if config.norm == "none" else _normed(backbone, read)
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
    cells = sorted(counts)
    columns = {
        "layer": pa.array([layer for _, layer in cells], pa.int64()),
        "offset": pa.array([offset for offset, _ in cells], pa.int64()),
        "mrr": pa.array([sums[cell] / counts[cell] for cell in cells], pa.float64()),
        "n": pa.array([counts[cell] for cell in cells], pa.int64()),
    }
    return LensScores(pa.table(columns), config.cutoff)
