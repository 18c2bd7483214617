"""Triples in a table: parquet, jsonl, csv or tsv, the latter two also packed with gzip."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
from pydantic import Field, model_validator

from permafrost.stages.corpus.csv_quotes import require_closed_quotes
from permafrost.stages.corpus.json_files import arrow_input
from permafrost.stages.corpus.names import find_column, require_columns
from permafrost.stages.corpus.table_files import (
    BROKEN,
    column_names,
    csv_options,
    file_format,
    file_sha256,
    read_columns,
    require_readable,
)
from permafrost.stages.graphs.knowledge_graph import (
    KnowledgeGraph,
    KnowledgeSource,
    graph_of_triples,
)
from permafrost.stages.graphs.lemmas import ENGLISH
from permafrost.stages.graphs.relation_table import (
    Relations,
    Wording,
    require_wording,
    table_facts,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

HEAD = ("head", "subject", "source", "start", "head_entity", "node1", "arg1", "h", "s")
RELATION = ("relation", "predicate", "rel", "relation_type", "edge", "property", "r", "p")
TAIL = ("tail", "object", "target", "end", "tail_entity", "node2", "arg2", "t", "o")
WEIGHT = ("weight", "score", "confidence")
_PACKED = {".csv.gz": "csv", ".tsv.gz": "tsv"}


class TriplesGraph(KnowledgeSource):
    """A file with a row per triple: head, relation, tail.

    ```yaml
    kind: triples
    path: data/conceptnet/train.parquet
    relations: merged
    ```
    """

    kind: Literal["triples"] = "triples"
    path: str
    """File, folder or pattern: .parquet, .jsonl, .csv, .tsv; or one .csv.gz or .tsv.gz."""
    head: str = HEAD[0]
    """Column; one whose name is not given may also have another usual name, as for the others."""
    relation: str = RELATION[0]
    """Column with the relation."""
    tail: str = TAIL[0]
    """Column with the second node."""
    weight: str = WEIGHT[0]
    """Column of weights, read only with `min_weight`."""
    min_weight: float | None = Field(default=None, allow_inf_nan=False)
    """Triples below this weight are left out."""
    relations: Relations = "raw"
    """`raw`: as they are; `merged`: ConceptNet's merged to 17 (`stages/graphs/relations_17.csv`)."""
    wording: Wording = "names"
    """How a merged relation reads in a description: `names`, as "at location"; `templates`, QA-GNN's wording,
    as "is at location of"."""
    language: str = Field(default=ENGLISH, pattern="^[a-z]{2,3}$")
    """Code of the labels' language, as `de`: texts are linked by its lemmas, if simplemma has them."""

    @model_validator(mode="after")
    def _templates_are_of_merged_relations(self) -> "TriplesGraph":
        require_wording(self.wording, self.relations)
        return self

    @property
    def words(self) -> Wording:
        """As given."""
        return self.wording

    @property
    def labels_language(self) -> str:
        """As given."""
        return self.language

    def facts(self) -> dict[str, Any]:
        """A digest of the file instead of its name, and everything that affects how it is read."""
        # Later fields: keys of before stay as they are.
        usual = {"wording": "names", "language": ENGLISH}
        later = {name for name, value in usual.items() if getattr(self, name) == value}
        file = Path(self.path)
        return {
            **self.model_dump(mode="json", exclude={"path"} | later),
            "file": {"format": _format(file), "sha256": file_sha256(file)},
            "table": table_facts() if self.relations == "merged" else None,
        }

    def read(self, progress: Progress) -> KnowledgeGraph:
        """Read the file; see `graph_of_triples`."""
        path, where = Path(self.path), self.path
        available = _column_names(path)
        names = (
            find_column("head", self.head, HEAD, available, where),
            find_column("relation", self.relation, RELATION, available, where),
            find_column("tail", self.tail, TAIL, available, where),
        )
        if self.min_weight is None:
            table = _read(path, names, [])
        else:
            weight = find_column("weight", self.weight, WEIGHT, available, where)
            table = _read(path, names, [weight])
            table = table.filter(pa.array(_weights(table, weight, where) >= self.min_weight))
            if not table.num_rows:
                raise InputError(
                    f"no triple of {where} has a weight of {self.min_weight:g} or more in column "
                    f"{quoted(weight)}; lower min_weight"
                )
            # Rows are counted among those.
            where = f"the triples of {where} with a weight of {self.min_weight:g} or more"
        if not table.num_rows:
            raise InputError(f"{where} has no triples; give at least one")
        head, relation, tail = (table.column(name) for name in names)
        return graph_of_triples((head, relation, tail), names, self.relations, where)


def _weights(table: pa.Table, name: str, where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    column = table.column(name)
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise InputError(
            f"column {quoted(name)} of {where} holds {column.type}, expected numbers: weights of triples"
        )
    values = column.cast(pa.float64()).fill_null(float("nan")).to_numpy()
    if (broken := ~np.isfinite(values)).any():
        row = int(broken.argmax())
        raise InputError(
            f"row {row + 1} of {where} has the weight {quoted(column.slice(row, 1).to_pylist()[0])} in "
            f"column {quoted(name)} ({int(broken.sum())} such of {len(values)} rows), expected a finite "
            "number; repair the rows, or leave min_weight out"
        )
    return values


def _packed(path: Path) -> str | None:
    """The format of a file packed with gzip; None for others."""
    return _PACKED.get("".join(path.suffixes[-2:]).lower())


def _format(path: Path) -> str:
    """The format; raises InputError for what cannot be read."""
    if (kind := _packed(path)) is None:
        return file_format(path)
    require_readable(path, (".gz",))
    return kind


def _column_names(path: Path) -> list[str]:
    if (kind := _packed(path)) is None:
        return column_names(path)
    require_readable(path, (".gz",))
    try:
        with pa.csv.open_csv(arrow_input(path), *csv_options(kind)) as head:
            return head.schema.names
    except BROKEN as error:
        raise _broken(path, error) from error


def _read(path: Path, texts: Sequence[str], numbers: Sequence[str]) -> pa.Table:
    if (kind := _packed(path)) is None:
        return read_columns(path, texts, numbers)
    require_columns(_column_names(path), [*texts, *numbers], str(path))
    converting = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(texts, pa.large_binary()), include_columns=[*texts, *numbers]
    )
    try:
        if kind == "csv":
            require_closed_quotes(path)
        return pa.csv.read_csv(arrow_input(path), *csv_options(kind), converting)
    except BROKEN as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} cannot be read as a table packed with gzip: {error}; repair the file, or unpack it"
    )
