"""A knowledge graph in memory, and the base class of the kinds that read one."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.corpus.values import checked_texts
from permafrost.stages.graphs.lemmas import ENGLISH
from permafrost.stages.graphs.relation_table import DROPPED, Relations, Wording, numbered_relations
from permafrost.stages.kinds import Category, Kind
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import offsets_of
from permafrost.storage.texts import Texts


@dataclass(frozen=True, eq=False)
class KnowledgeGraph:
    """Triples of numbered nodes; v nodes, t triples."""

    labels: Sequence[str]
    """`[v]`: each once, in the order of their code points, so that the order of labels is that of numbers."""
    relations: tuple[str, ...]
    heads: NDArray[np.int32]
    """`[t]`: triples sorted by head, then tail, then relation; no triple twice, none from a node to
    itself."""
    tails: NDArray[np.int32]
    relation: NDArray[np.int32]

    @cached_property
    def out_offsets(self) -> NDArray[np.int64]:
        """`[v + 1]`: the triples whose head is node i are `out_offsets[i]` to `out_offsets[i + 1]`."""
        return offsets_of(np.bincount(self.heads, minlength=len(self.labels)))

    @cached_property
    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Offsets `[v + 1]` and numbers: the nodes joined to node i by a triple in either direction, each
        once, ascending."""
        n = len(self.labels)
        ends = np.concatenate([self.heads, self.tails]).astype(np.int64)
        others = np.concatenate([self.tails, self.heads])
        pairs = np.unique(ends * n + others)
        return offsets_of(np.bincount(pairs // n, minlength=n)), (pairs % n).astype(np.int32)


class KnowledgeSource(Kind):
    """Where the triples of a knowledge graph come from."""

    @property
    def words(self) -> Wording:
        """How merged relations read in descriptions."""
        return "names"

    @property
    def labels_language(self) -> str:
        """Code of the language of its labels, whose lemmas texts are linked by."""
        return ENGLISH

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What enters the key of a corpus that uses the graph: names of files are replaced by digests.

        Raises:
            InputError: a file does not exist or cannot be read.
        """

    @abstractmethod
    def read(self, progress: Progress) -> KnowledgeGraph:
        """Read the graph.

        Raises:
            InputError: the data are faulty; the message says what is wrong, in which row of which file.
        """


KNOWLEDGE = Category("knowledge graph", KnowledgeSource, "permafrost.stages.graphs.knowledge")
KnowledgeConfig = Annotated[KnowledgeSource, KNOWLEDGE.field()]
"""Any knowledge graph, by its `kind`."""


def graph_of_triples(
    columns: tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray],
    names: tuple[str, str, str],
    relations: Relations,
    where: str,
) -> KnowledgeGraph:
    """Number the nodes and relations of triples.

    White space around a label is cut off. A triple that comes twice counts once, also where merging makes two
    relations equal; one from a node to itself is dropped, as QA-GNN does.

    Args:
        columns: heads, relations and tails, a row per triple.
        names: of these columns, for messages.
        relations: `merged` or `raw`.
        where: names the source, for messages.

    Raises:
        InputError: there are no triples, a value is missing, blank or not text, a relation is unknown or not
            free (`require_free`), or nothing is left.
    """
    head, relation, tail = (
        pc.utf8_trim_whitespace(checked_texts(column, name, where))
        for column, name in zip(columns, names, strict=True)
    )
    encoded = relation.combine_chunks().dictionary_encode()
    raw: list[str] = encoded.dictionary.to_pylist()
    vocabulary, numbers, is_reversed = numbered_relations(raw, relations, where)
    of_row = encoded.indices.to_numpy()
    ends = pa.chunked_array([*head.chunks, *tail.chunks], pa.large_string())
    labels, (heads, tails) = _numbered_labels(ends, head.length())
    number, swap = numbers[of_row], is_reversed[of_row]
    heads, tails = np.where(swap, tails, heads), np.where(swap, heads, tails)
    kept = (number != DROPPED) & (heads != tails)
    if not kept.any():
        raise _nothing_left(raw, numbers, number == DROPPED, where)
    triples = np.unique(np.stack([heads[kept], tails[kept], number[kept]]), axis=1)
    # Nodes that only dropped triples name are no nodes.
    used, ends_of = np.unique(triples[:2], return_inverse=True)
    heads, tails = ends_of.reshape(2, -1).astype(np.int32)
    return KnowledgeGraph(
        Texts(labels.take(pa.array(used))),
        vocabulary,
        heads,
        tails,
        triples[2].astype(np.int32),
    )


def _nothing_left(
    raw: Sequence[str],
    numbers: NDArray[np.int32],
    is_dropped: NDArray[np.bool_],
    where: str,
) -> InputError:
    """Says why each triple is dropped: for its relation, or as one from a node to itself."""
    n, n_dropped = len(is_dropped), int(is_dropped.sum())
    reasons, advice = list[str](), ["give another file"]
    if n_dropped:
        names = [name for name, number in zip(raw, numbers, strict=True) if number == DROPPED]
        reasons.append(
            f"{n_dropped:,} with relations that the table of merged relations drops "
            f"({', '.join(map(quoted, names[:5]))})"
        )
        advice.insert(0, "take the relations as they are with 'relations: raw'")
    if n_dropped < n:
        reasons.append(f"{n - n_dropped:,} from a node to itself")
    return InputError(
        f"none of the {n:,} triples of {where} is left: {', '.join(reasons)}; {', or '.join(advice)}"
    )


def _numbered_labels(
    ends: pa.ChunkedArray, n_triples: int
) -> tuple[pa.Array, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The distinct labels, sorted, and the numbers of heads and tails."""
    encoded = ends.combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    numbers = rank[encoded.indices.to_numpy()]
    return encoded.dictionary.take(order), (numbers[:n_triples], numbers[n_triples:])
