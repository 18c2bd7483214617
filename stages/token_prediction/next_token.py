"""Next-token probe: how much of the next token can a linear map read off a layer's stored vectors?

Source: Value Aggregation, appendix D, figures 5 and 6: a linear softmax on the last hidden state of a prefix,
or on the mean of the prefix's values (`of: va`), accuracy and loss. Where it draws epochs, this measures
every layer: a linear map is trained on train, stopped on dev and scored on test, with the rows of the
backbone's own unembedding as keys, or with trained ones (`softmax_keys: trained`), which the paper's words
leave open. Two more predictors stand beside it: the backbone's own prediction from its final states, and the
frequencies of tokens in train, which see no text at all.

Reads stored features, and of the weights one matrix.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int64
from torch import Tensor

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.capture import ArrayName, Index
from permafrost.stages.extraction.files import BackboneFiles
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.unembedding import read_unembedding
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.probes.stored import place
from permafrost.stages.token_prediction.config import (
    LinearNextToken,
    NextTokenConfig,
    TokenFrequencies,
)
from permafrost.stages.token_prediction.linear_map import (
    Examples,
    Quality,
    from_ranks,
    quality,
    train_map,
)
from permafrost.stages.token_prediction.linear_softmax import train_keys
from permafrost.stages.token_prediction.prefixes import require_prefixes
from permafrost.stages.token_prediction.ranks import load_ranked, save_ranked
from permafrost.stages.token_prediction.stored_tokens import (
    SplitTokens,
    each_token,
    prefix_means,
    split_tokens,
)
from permafrost.storage.progress import Progress

TABLE = pa.schema(
    [
        ("layer", pa.string()),
        ("x", pa.float64()),
        ("nll", pa.float64()),
        ("accuracy", pa.float64()),
        ("mrr", pa.float64()),
        ("epoch", pa.int64()),
        ("n", pa.int64()),
    ]
)
"""`nll` in nats per token; `epoch` is the one kept, null where nothing is trained; `n` tokens of test."""


@dataclass(frozen=True)
class NextTokenScores:
    """Quality of the prediction of test tokens, by layer."""

    table: pa.Table
    """Columns of `TABLE`."""
    cutoff: int

    @property
    def curves(self) -> ProbeCurves:
        """Accuracy, MRR and loss over layers."""
        return ProbeCurves("layer", tuple(self._points()))

    def _points(self) -> Iterator[Point]:
        for row in self.table.to_pylist():
            at = row["x"], row["layer"]
            yield Point("accuracy", "share", *at, row["accuracy"])
            yield Point(f"MRR@{self.cutoff}", "share", *at, row["mrr"])
            yield Point("loss, nats per token", "number", *at, row["nll"])

    def save(self, folder: Path) -> None:
        """Write next_token.parquet, and the curves."""
        save_ranked(self.table, self.cutoff, folder / "next_token.parquet")
        self.curves.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "NextTokenScores":
        """Read what `save` wrote."""
        return cls(*load_ranked(folder / "next_token.parquet"))


def probe_next_token(
    config: NextTokenConfig,
    features: StoredFeatures,
    recipe: Recipe,
    files: BackboneFiles,
    corpus: Corpus,
    progress: Progress,
    device: str = "cpu",
) -> NextTokenScores:
    """Predict the following tokens of test.

    Args:
        config: by what, and which tokens.
        features: of the corpus's texts.
        recipe: that they were computed under, resolved.
        files: of the backbone that computed them; its unembedding is read from there.
        corpus: with the splits train, dev and test.
        progress: told of every layer.
        device: where maps are trained.

    Raises:
        InputError: an encoder, a recipe that shows later tokens to earlier ones, no unembedding, or a split
            that is missing or too short.
    """
    require_prefixes(recipe, features.sizes)
    unembedding = read_unembedding(files).to(torch.device(device))
    tokens = split_tokens(features, corpus, config.offset, config.n_tokens, config.seed)
    if isinstance(config, TokenFrequencies):
        n_vocabulary = len(unembedding.rows)
        scored = frequencies(
            tokens["train"].targets, tokens["test"].targets, n_vocabulary, config.cutoff
        )
        # It does not depend on the layer: a level line from the first to the last.
        sizes = features.sizes
        ends: tuple[Index, ...] = (0, "final" if sizes.has_final_norm else sizes.n_layers)
        rows = [_row(end, place(end, sizes), scored, None, tokens) for end in ends]
        return _scores(rows, config.cutoff)

    made_of = prefix_means if config.predictor == "linear" and config.of == "va" else each_token

    def examples(split: str, array: str) -> Examples:
        rows = torch.from_numpy(tokens[split].rows(features, array, made_of)).to(device)
        return Examples(rows, torch.from_numpy(tokens[split].targets).to(device))

    arrays, rows = config.arrays(features.sizes), list[dict[str, object]]()
    progress.start("next-token probe", len(arrays), "layers")
    try:
        for array in arrays:
            queries, scores, epoch = _unchanged, unembedding, None
            if isinstance(config, LinearNextToken):
                train, dev = examples("train", array), examples("dev", array)
                if config.softmax_keys == "trained":
                    trained = train_keys(config, train, dev, len(unembedding.rows))
                    scores = trained.scores
                else:
                    trained = train_map(config, train, dev, unembedding.rows)
                    # Without the model's softcap, as the map is trained.
                    scores = unembedding.uncapped()
                queries, epoch = trained.queries, trained.epoch
            test = examples("test", array)
            scored = quality(test, queries, scores, config.temperature, config.cutoff)
            layer = ArrayName.parse(array).index
            rows.append(_row(layer, place(layer, features.sizes), scored, epoch, tokens))
            progress.advance(1, f"MRR {scored.mrr:.3f}")
    finally:
        progress.finish()
    return _scores(rows, config.cutoff)


def frequencies(
    train: Int64[np.ndarray, " n_train"],
    test: Int64[np.ndarray, " n_test"],
    n_vocabulary: int,
    cutoff: int,
) -> Quality:
    """Every token predicted by its count in train, plus one; ties count against."""
    counts = np.bincount(train, minlength=n_vocabulary) + 1
    wanted = counts[test]
    ranks = n_vocabulary - np.searchsorted(np.sort(counts), wanted, side="left")
    nll = -np.log(wanted / counts.sum()).sum()
    return from_ranks(ranks.astype(np.int64), float(nll), cutoff)


def _unchanged(rows: Tensor) -> Tensor:
    return rows


def _row(
    layer: Index, x: float, scored: Quality, epoch: int | None, tokens: dict[str, SplitTokens]
) -> dict[str, object]:
    n = len(tokens["test"].targets)
    return {"layer": str(layer), "x": x, **asdict(scored), "epoch": epoch, "n": n}


def _scores(rows: list[dict[str, object]], cutoff: int) -> NextTokenScores:
    columns = {name: [row[name] for row in rows] for name in TABLE.names}
    return NextTokenScores(pa.table(columns, schema=TABLE), cutoff)
