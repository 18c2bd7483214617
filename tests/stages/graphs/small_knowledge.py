"""A knowledge graph of a few triples, as a file."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TRIPLES = [
    ("dog", "IsA", "animal"),
    ("dog", "AtLocation", "park"),
    ("park", "HasA", "tree"),
    ("bird", "AtLocation", "tree"),
    ("bird", "IsA", "animal"),
    ("ice cream", "AtLocation", "park"),
    ("eat", "MotivatedByGoal", "hunger"),
]


def write_triples(folder: Path, rows: list[tuple[Any, Any, Any]] | None = None) -> Path:
    """A parquet file of triples."""
    columns = zip(*(TRIPLES if rows is None else rows), strict=True)
    table = pa.table(dict(zip(("head", "relation", "tail"), map(list, columns), strict=True)))
    pq.write_table(table, folder / "triples.parquet")
    return folder / "triples.parquet"


def knowledge(folder: Path, **fields: Any) -> dict[str, Any]:
    """The config of that file."""
    return {"kind": "triples", "path": str(write_triples(folder)), "relations": "merged", **fields}
