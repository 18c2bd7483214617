"""The attention of every token to every token of one text, as an artifact has it."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from permafrost.storage.errors import CorruptDataError

WEIGHTS = "attention_map.parquet"
TOKENS = "attention_map.json"
_WEIGHTS = pa.schema(
    [
        ("block", pa.int64()),
        ("query", pa.int64()),
        ("key", pa.int64()),
        ("weight", pa.float32()),
    ]
)
"""`query` and `key`: places of tokens in the input, from 0. Weights that are 0 are left out."""


@dataclass(frozen=True)
class AttentionMap:
    """One text under one recipe."""

    tokens: tuple[str, ...]
    """Of the whole input, as the tokenizer writes them, placeholders included."""
    ends: tuple[int, ...]
    """Places of the last tokens of the text's own sentences."""
    placeholders: tuple[int, ...]
    """Places of placeholders, whose states are those of later tokens."""
    weights: dict[int, Float32[np.ndarray, "t t"]]
    """By block: rows are queries, columns keys; the mean over heads."""

    def save(self, folder: Path) -> None:
        """Write attention_map.parquet and attention_map.json."""
        columns: dict[str, list[float]] = {name: [] for name in _WEIGHTS.names}
        for block, weights in self.weights.items():
            queries, keys = np.nonzero(weights)
            columns["block"] += [block] * len(queries)
            columns["query"] += queries.tolist()
            columns["key"] += keys.tolist()
            columns["weight"] += weights[queries, keys].tolist()
        pq.write_table(pa.table(columns, schema=_WEIGHTS), folder / WEIGHTS)
        record = {
            "tokens": self.tokens,
            "ends": self.ends,
            "placeholders": self.placeholders,
            "blocks": list(self.weights),
        }
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        (folder / TOKENS).write_text(text, encoding="utf-8")


def read_attention_map(folder: Path) -> AttentionMap | None:
    """What `AttentionMap.save` wrote; None where there is nothing of it.

    Raises:
        CorruptDataError: its files do not describe a map.
    """
    if not (folder / TOKENS).exists():
        return None
    try:
        record = json.loads((folder / TOKENS).read_text(encoding="utf-8"))
        table = pq.read_table(folder / WEIGHTS, schema=_WEIGHTS)
        columns = {name: table.column(name).to_numpy() for name in _WEIGHTS.names}
        n = len(record["tokens"])
        weights = {int(block): np.zeros((n, n), np.float32) for block in record["blocks"]}
        for block, matrix in weights.items():
            of_block = columns["block"] == block
            matrix[columns["query"][of_block], columns["key"][of_block]] = columns["weight"][
                of_block
            ]
        return AttentionMap(
            tuple(record["tokens"]), tuple(record["ends"]), tuple(record["placeholders"]), weights
        )
    except (OSError, ValueError, TypeError, KeyError, IndexError, pa.ArrowInvalid) as error:
        raise CorruptDataError(
            f"the attention map in {folder} is damaged ({type(error).__name__}: {error}); delete the "
            "artifact and run the probe again"
        ) from error
