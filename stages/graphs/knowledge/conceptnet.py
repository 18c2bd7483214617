"""ConceptNet 5's assertions as published: `conceptnet-assertions-5.*.csv.gz`, packed or unpacked.

Each line has five cells separated by tabs: the assertion's URI, relation, start, end, and JSON with its
weight.
"""

import gzip
import json
import math
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from permafrost.stages.corpus.table_files import file_sha256, require_readable
from permafrost.stages.graphs.knowledge_graph import (
    KnowledgeGraph,
    KnowledgeSource,
    graph_of_triples,
)
from permafrost.stages.graphs.relation_table import (
    Relations,
    Wording,
    require_wording,
    table_facts,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted

_N_CELLS = 5
_EVERY = 100_000
"""Lines between two steps of the progress display."""


class ConceptNetGraph(KnowledgeSource):
    """Assertions between two terms of one language, without their senses: `/c/en/ice_cream/n` is "ice cream".

    ```yaml
    kind: conceptnet
    path: data/conceptnet-assertions-5.7.0.csv.gz
    ```
    """

    kind: Literal["conceptnet"] = "conceptnet"
    path: str
    """One file, .csv or .csv.gz."""
    language: str = Field(default="en", pattern="^[a-z_]+$")
    """Code as in `/c/en/`. Texts are linked by its lemmas, if simplemma has them."""
    terms: Literal["letters", "all"] = "letters"
    """`letters`: only of letters, spaces and hyphens, as QA-GNN takes them; `all`."""
    min_weight: float = Field(default=0.0, allow_inf_nan=False)
    """Assertions below this weight are left out."""
    relations: Relations = "merged"
    """`merged`: 17 (`stages/graphs/relations_17.csv`); `raw`: as they are."""
    wording: Wording = "names"
    """How a merged relation reads in a description: `names`, as "at location"; `templates`, QA-GNN's wording,
    as "is at location of"."""

    @model_validator(mode="after")
    def _templates_are_of_merged_relations(self) -> "ConceptNetGraph":
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
        # A later field: keys of before stay as they are.
        later = {"wording"} if self.wording == "names" else set[str]()
        require_readable(path := Path(self.path), (".gz", ".csv"))
        return {
            **self.model_dump(mode="json", exclude={"path"} | later),
            "sha256": file_sha256(path),
            "table": table_facts() if self.relations == "merged" else None,
        }

    def read(self, progress: Progress) -> KnowledgeGraph:
        """Read the assertions of one language; see `graph_of_triples`.

        Raises:
            InputError: the file cannot be read, a line is not an assertion, or none is of the language.
        """
        path, where = Path(self.path), self.path
        require_readable(path, (".gz", ".csv"))
        starts, relations, ends = list[str](), list[str](), list[str]()
        prefix = f"/c/{self.language}/"
        # Most lines are of other languages: they are passed over before anything of them is parsed.
        marks = f"\t{prefix}".encode()
        with _lines(path, progress) as lines:
            for number, line in lines:
                if line.count(marks) < 2:
                    continue
                start, relation, end, weight = _assertion(line, number, where)
                terms = _term(start, prefix), _term(end, prefix)
                if weight < self.min_weight or not all(map(self._takes, terms)):
                    continue
                starts.append(terms[0])
                relations.append(relation)
                ends.append(terms[1])
        if not starts:
            raise InputError(
                f"{where} has no assertion between two terms of the language {quoted(self.language)} with a "
                f"weight of {self.min_weight:g} or more; it should be conceptnet-assertions-5.*.csv.gz"
            )
        head, relation, tail = (
            pa.chunked_array([pa.array(column, pa.large_string())])
            for column in (starts, relations, ends)
        )
        names = ("start", "relation", "end")
        return graph_of_triples((head, relation, tail), names, self.relations, where)

    def _takes(self, term: str) -> bool:
        if self.terms == "all":
            return bool(term)
        letters = term.replace(" ", "").replace("-", "")
        return bool(letters) and all(unicodedata.category(c)[0] in "LM" for c in letters)


@contextmanager
def _lines(path: Path, progress: Progress) -> Iterator[Iterator[tuple[int, bytes]]]:
    """The lines of a file, packed or not, numbered from 1."""
    progress.start(f"read {path.name}", path.stat().st_size, "bytes")
    try:
        with path.open("rb") as raw:
            file = gzip.open(raw) if path.suffix.lower() == ".gz" else raw  # noqa: SIM115 (raw closes)
            yield _numbered(file, raw, progress)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {error}; get the file again") from error
    finally:
        progress.finish()


def _numbered(
    lines: "gzip.GzipFile | BinaryIO", raw: BinaryIO, progress: Progress
) -> Iterator[tuple[int, bytes]]:
    done = 0
    for number, line in enumerate(lines, start=1):
        if number % _EVERY == 0:
            progress.advance(raw.tell() - done)
            done = raw.tell()
        yield number, line


def _assertion(line: bytes, number: int, where: str) -> tuple[str, str, str, float]:
    """Start, relation, end and weight."""
    try:
        cells = line.decode().rstrip("\n").split("\t")
        if len(cells) != _N_CELLS:
            raise ValueError(f"it has {len(cells)} cells, expected {_N_CELLS}")
        _, relation, start, end, about = cells
        weight = json.loads(about)["weight"]
        if (
            isinstance(weight, bool)
            or not isinstance(weight, int | float)
            or not math.isfinite(weight)
        ):
            raise ValueError(f"its weight is {quoted(weight)}, expected a finite number")
        if not relation.startswith("/r/"):
            raise ValueError(f"its relation is {quoted(relation)}, expected a URI such as /r/IsA")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        what = f"its JSON has no {error}" if isinstance(error, KeyError) else error
        raise InputError(
            f"line {number:,} of {where} is not an assertion of ConceptNet 5: {what}; get the file again, or "
            "read a table of your own with kind 'triples'"
        ) from error
    return start, relation.removeprefix("/r/"), end, float(weight)


def _term(uri: str, prefix: str) -> str:
    """The words of `/c/en/ice_cream/n/wn/food`."""
    return uri.removeprefix(prefix).partition("/")[0].replace("_", " ")
