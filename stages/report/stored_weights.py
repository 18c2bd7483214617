"""The token weights that scores have kept, beside the tokens that they belong to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64

from permafrost.stages.report.cells import CellResult
from permafrost.stages.report.tokens import ReadToken, TextTokens, readable
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.quoting import quoted

FILE = "token_weights.parquet"
_COLUMNS = ("text", "digest", "weights")


@dataclass(frozen=True)
class TextWeights:
    """The weights of one text, 1 in sum."""

    digest: str
    weights: Float64[np.ndarray, " n_tokens"]


@dataclass(frozen=True)
class CellWeights:
    """What a method, with one seed, weighs on a task."""

    method: str
    task: str
    seed: int
    folder: Path
    """Of the score."""
    texts: Mapping[int, TextWeights]
    """By the text's number in the corpus."""


Reading = Mapping[str, tuple[ReadToken, ...]]
"""Digests of texts to their tokens."""


def read_weights(results: Sequence[CellResult]) -> tuple[CellWeights, ...]:
    """The weights of every method that has some, cells in their order.

    Raises:
        CorruptDataError: a file lacks a column or cannot be read.
    """
    return tuple(
        CellWeights(r.cell.method, r.cell.task, r.cell.seed, r.cell.folder, _texts(path))
        for r in results
        if r.cell.role == "method" and (path := r.cell.folder / FILE).exists()
    )


def read_tokens(weights: Sequence[CellWeights], tokens: TextTokens) -> Reading:
    """The tokens of all texts that have weights, as far as they are known.

    Raises:
        CorruptDataError: a text has not as many tokens as weights.
    """
    digests = dict.fromkeys(text.digest for cell in weights for text in cell.texts.values())
    found = {d: readable(of_text) for d, of_text in tokens(list(digests)).items()}
    for cell in weights:
        for text in cell.texts.values():
            read = found.get(text.digest)
            if read is not None and len(read) != len(text.weights):
                raise CorruptDataError(
                    f"text {text.digest[:12]} has {len(text.weights)} weights under {quoted(cell.method)} "
                    f"but {len(read)} tokens; they were made from different features, so score it again"
                )
    return found


def _texts(path: Path) -> dict[int, TextWeights]:
    try:
        rows = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise CorruptDataError(
            f"{path} cannot be read with the columns {list(_COLUMNS)}: {error}; score it again"
        ) from error
    return {
        row["text"]: TextWeights(row["digest"], np.asarray(row["weights"], np.float64))
        for row in rows
    }
