"""Tables of a user's graphs from torch-geometric's `Data`."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch_geometric.data import Batch, Data, HeteroData

from permafrost.stages.corpus.columns import LABELLED_SPLITS
from permafrost.stages.corpus.given_texts import require_unicode
from permafrost.stages.graphs.node_types import OTHER, QUERY_NODE
from permafrost.stages.graphs.relation_names import trimmed_names
from permafrost.stages.graphs.text_graphs import LARGEST_RELEVANCE
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Judged = tuple[str, int, int, int]
"""Split, query, document and grade; query and document by their numbers in the data."""
_NODES = pa.schema(
    [
        ("graph", pa.int64()),
        ("node", pa.int64()),
        ("text", pa.string()),
        ("type", pa.int64()),
        ("relevance", pa.float64()),
    ]
)
_EDGES = pa.schema(
    [
        ("graph", pa.int64()),
        ("source", pa.int64()),
        ("target", pa.int64()),
        ("relation", pa.string()),
    ]
)
_SPLIT, _LABEL, _CASE = (
    pa.field("split", pa.string()),
    pa.field("label", pa.int64()),
    pa.field("case", pa.string()),
)
_ONE = [_SPLIT, pa.field("text", pa.string()), pa.field("graph", pa.int64()), _LABEL]
_PAIR = [
    pa.field(name, kind)
    for side in ("query", "document")
    for name, kind in ((side, pa.string()), (f"{side}_graph", pa.int64()))
]
_EXAMPLES = {
    "classification": pa.schema(_ONE),
    "multiple_choice": pa.schema([*_ONE, _CASE]),
    "retrieval": pa.schema([_SPLIT, *_PAIR, _LABEL]),
}
_Rows = list[tuple[Any, ...]]


def graphs_from_data(
    data: Iterable[Data | HeteroData],
    folder: str | os.PathLike[str],
    relations: Sequence[str] = ("edge",),
    judgements: Iterable[Judged] | None = None,
) -> dict[str, str]:
    """Write `nodes.parquet`, `edges.parquet` and `examples.parquet` for a corpus of kind `graphs`.

    Each `Data` has, besides `edge_index` `[2, n_edges]`:

    - `node_text`: one text per node; only a query node's may be blank;
    - `edge_type` `[n_edges]`: index into `relations`; may be left out if there is one relation;
    - `node_role` `[n_nodes]`, if any: 0 query entity, 1 answer entity, 2 other, 3 query node;
    - `node_relevance` `[n_nodes]`, if any: a number;
    - `text`, which goes with the graph;
    - `y` (a class) and `split` (train, dev or test). With a `case`, the name or number of a question, it is
      one of the choices of that question, and `y` is 1 for the right one, else 0.

    In a search neither `y` nor `split` is read: `judgements` say which documents are relevant to which
    queries, and the documents that they name are searched.

    A `Data` without nodes is a text without a graph.

    An undirected graph has both directions in `edge_index`, so both become triples. Features in `x` are not
    written: nodes are read from their texts. Neither are `edge_attr` and `edge_weight`, which are refused
    where there is no `edge_type`, as they may hold the relations. `node_type`, where
    torch-geometric keeps which nodes of a heterogeneous graph are of one kind, has no place in the tables and
    is refused.

    Args:
        data: graphs, at least one.
        folder: made if it is not there; must not hold the files yet.
        relations: names of the relations.
        judgements: of a search; None for classes and choices.

    Returns:
        The fields of a source: kind, task, nodes, edges and examples.

    Raises:
        InputError: an attribute is missing or does not fit the graph, a text is blank, a graph has two query
            nodes, a split is none of train, dev and test, a relation is no text, blank, named twice or not
            free, no graph has a node, some `Data` have a case and others have none, or a judgement is of no
            graph; nothing is written.
    """
    relations = _require_names(relations)
    _require_several(data)
    every = list(data)
    if not every:
        raise InputError("there are no graphs; give at least one")
    nodes: _Rows = []
    edges: _Rows = []
    for graph, one in enumerate(every):
        where = _name(graph)
        if not isinstance(one, Data):
            raise InputError(
                f"{where} is a {type(one).__name__}, expected a torch_geometric.data.Data; a heterogeneous "
                "graph becomes one with to_homogeneous(add_node_type=False), whose relations are its "
                "edge_types"
            )
        if "node_type" in one:
            raise InputError(
                f"{where} has node_type, in which torch-geometric keeps a heterogeneous graph's kinds of "
                "node; name the nodes' roles (0 query entity, 1 answer entity, 2 other, 3 query node) in "
                "node_role, and take node_type away (del data.node_type)"
            )
        texts = _texts(one, where)
        n = len(texts)
        types = _numbers(one, "node_role", n, 4, where) or [OTHER] * n
        _require_filled(texts, types, where)
        _require_one_query_node(types, where)
        relevance = _relevance(one, n, where)
        nodes += [
            (graph, i, *row) for i, row in enumerate(zip(texts, types, relevance, strict=True))
        ]
        sources, targets = _ends(one, n, where)
        found = _numbers(one, "edge_type", len(sources), len(relations), where)
        if found is None and sources:
            _require_one_relation(one, relations, where)
        named = [relations[r] for r in (found or [0] * len(sources))]
        edges += [(graph, s, t, r) for s, t, r in zip(sources, targets, named, strict=True)]
    if not nodes:
        raise InputError(
            f"none of the {len(every)} graphs has a node; give at least one node, or train on the texts alone"
        )
    task, examples = _asked(every, None if judgements is None else list(judgements))
    # A column that none has would say of a model that it was trained on more than labels.
    absent = [
        column
        for column, name in (("type", "node_role"), ("relevance", "node_relevance"))
        if all(getattr(one, name, None) is None for one in every)
    ]
    tables = {
        "nodes": _table(nodes, _NODES).drop_columns(absent),
        "edges": _table(edges, _EDGES),
        "examples": _table(examples, _EXAMPLES[task]),
    }
    return {"kind": "graphs", "task": task, **_write(Path(folder), tables)}


def _require_names(relations: Sequence[str]) -> tuple[str, ...]:
    """The names, trimmed."""
    if isinstance(relations, str) or not all(isinstance(r, str) and r.strip() for r in relations):
        raise InputError(
            f"relations is {quoted(relations)}, expected a list of names, such as ['atLocation', 'in']"
        )
    for name in relations:
        require_unicode(name, "relations")
    return trimmed_names(relations)


def _require_several(data: object) -> None:
    """Check that data are no single graph, which is iterable too."""
    if isinstance(data, Batch):
        raise InputError(
            f"data is a {type(data).__name__} of {data.num_graphs} graphs, expected a list of them; give "
            "batch.to_data_list()"
        )
    if isinstance(data, Data | HeteroData):
        raise InputError(
            f"data is a single {type(data).__name__}, expected a list of them; give [data]"
        )


def _require_one_relation(data: Data, relations: Sequence[str], where: str) -> None:
    """Check that edges without edge_type can be of one relation alone."""
    for name in ("edge_attr", "edge_weight"):
        if getattr(data, name, None) is not None:
            raise InputError(
                f"{where} has {name} and no edge_type, and {name} is not written; put the number of each "
                f"edge's relation in edge_type, or delete {name} (del data.{name}) if it holds none"
            )
    if len(relations) > 1:
        raise InputError(
            f"{where} has no edge_type, but there are {len(relations)} relations; give one number per edge"
        )


def _name(graph: int) -> str:
    return f"graph {graph} of the data"


def _asked(data: Sequence[Any], judgements: Sequence[Judged] | None) -> tuple[str, _Rows]:
    """The kind of task, and its rows."""
    if judgements is not None:
        if not judgements:
            raise InputError("there are no judgements; give at least one, or leave them out")
        return "retrieval", [_judged(data, at, one) for at, one in enumerate(judgements)]
    rows = [_example(one, graph) for graph, one in enumerate(data)]
    cases = [getattr(one, "case", None) for one in data]
    has = [case is not None for case in cases]
    if not any(has):
        return "classification", rows
    if not all(has):
        raise InputError(
            f"{_name(has.index(False))} has no case, and {_name(has.index(True))} has one; give every choice "
            "the case that it belongs to, or none"
        )
    return "multiple_choice", [
        (*row, _case(c, i)) for i, (row, c) in enumerate(zip(rows, cases, strict=True))
    ]


def _case(case: object, graph: int) -> str:
    case = _single(case)
    if not isinstance(case, int | str) or isinstance(case, bool):
        raise InputError(
            f"{_name(graph)} has {quoted(case)} as case, expected the name or the number of a question"
        )
    require_unicode(str(case), f"case of {_name(graph)}")
    return str(case)


def _judged(data: Sequence[Any], at: int, judged: Judged) -> tuple[Any, ...]:
    """A row of a search."""
    parts = list(judged) if isinstance(judged, list | tuple) else []
    if [type(v) for v in parts] != [str, int, int, int]:
        raise InputError(
            f"judgement {at} is {quoted(judged)}, expected a split, the numbers of a query and a document in "
            "the data, and a grade, a whole number"
        )
    split, query, document, grade = judged
    _require_split(split, f"judgement {at}")
    sides: list[Any] = []
    for graph in (query, document):
        if not 0 <= graph < len(data):
            raise InputError(
                f"judgement {at} names graph {graph}, but there are {len(data)}, numbered from 0"
            )
        sides += [_filled(data[graph], _name(graph)), _id(data[graph], graph)]
    return (split, *sides, grade)


def _relevance(data: Data, n: int, where: str) -> list[float]:
    values = getattr(data, "node_relevance", None)
    if values is None:
        return [0.0] * n
    found = _listed(values)
    are_numbers = found is not None and all(
        isinstance(v, int | float) and abs(v) <= LARGEST_RELEVANCE for v in found
    )
    if found is None or len(found) != n or not are_numbers:
        shown = values if found is None else found
        raise InputError(
            f"{where} has {quoted(shown)} as node_relevance, expected {n} finite numbers, one per node, at "
            f"most ±{LARGEST_RELEVANCE:.4g}"
        )
    return [float(v) for v in found]


def _texts(data: Data, where: str) -> list[str]:
    texts = getattr(data, "node_text", None)
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where} has {quoted(texts)} as node_text, expected a list with one text per node"
        )
    for at, text in enumerate(texts):
        require_unicode(text, f"node_text[{at}] of {where}")
    # Where nothing says how many there are, torch-geometric infers it from the edges.
    n = data.num_nodes if "num_nodes" in data or "x" in data else len(texts)
    if n != len(texts):
        raise InputError(
            f"{where} has {n} nodes and {len(texts)} texts in node_text; give one per node"
        )
    return list(texts)


def _require_filled(texts: Sequence[str], types: Sequence[int], where: str) -> None:
    """Check that no text is blank. A query node starts from a query, and needs none of its own."""
    for at, (text, kind) in enumerate(zip(texts, types, strict=True)):
        if not text.strip() and kind != QUERY_NODE:
            raise InputError(
                f"{where} has the blank text {quoted(text)} as node_text[{at}]; give the node a text, or "
                "remove it"
            )


def _require_one_query_node(types: Sequence[int], where: str) -> None:
    found = [at for at, kind in enumerate(types) if kind == QUERY_NODE]
    if len(found) > 1:
        raise InputError(
            f"{where} has {len(found)} query nodes, {', '.join(map(str, found))}, expected one at most; give "
            f"the others another node_role ({OTHER}: no entity of query or answer)"
        )


def _ends(data: Data, n_nodes: int, where: str) -> tuple[list[int], list[int]]:
    index = data.edge_index
    if index is None:
        return [], []
    if isinstance(index, np.ndarray):
        index = torch.as_tensor(index)
    if not isinstance(index, torch.Tensor):
        raise InputError(
            f"{where} has {quoted(index)} as edge_index, expected a tensor of shape [2, n_edges] and type "
            "torch.int64"
        )
    if index.ndim != 2 or index.shape[0] != 2 or index.dtype != torch.int64:
        raise InputError(
            f"{where} has an edge_index of shape {list(index.shape)} and type {index.dtype}, expected "
            "[2, n_edges] and torch.int64"
        )
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= n_nodes):
        wrong = int(index.max()) if int(index.max()) >= n_nodes else int(index.min())
        raise InputError(
            f"{where} has an edge to node {wrong}, but its nodes are 0 to {n_nodes - 1}; remove the edge or "
            "add the node"
        )
    sources, targets = index.tolist()
    return sources, targets


def _numbers(data: Data, name: str, n: int, end: int, where: str) -> list[int] | None:
    """An attribute of n whole numbers below `end`; None if there is none."""
    values = getattr(data, name, None)
    if values is None:
        return None
    found = _listed(values)
    if (
        found is None
        or len(found) != n
        or not all(isinstance(v, int) and 0 <= v < end for v in found)
    ):
        raise InputError(
            f"{where} has {quoted(values if found is None else found)} as {name}, expected {n} whole numbers "
            f"from 0 to {end - 1}"
        )
    return [int(v) for v in found]


def _text(data: Data, name: str, where: str) -> str:
    value = getattr(data, name, None)
    if not isinstance(value, str):
        raise InputError(f"{where} has {quoted(value)} as {name}, expected text")
    require_unicode(value, f"{name} of {where}")
    return value


def _filled(data: Data, where: str) -> str:
    """Its text; raises InputError if that is blank."""
    text = _text(data, "text", where)
    if not text.strip():
        raise InputError(
            f"{where} has the blank text {quoted(text)} as text; fill it, or remove it"
        )
    return text


def _require_split(split: str, where: str) -> None:
    if split not in LABELLED_SPLITS:
        raise InputError(
            f"{where} is of the split {quoted(split)}, which is not one of {', '.join(LABELLED_SPLITS)}; "
            "rename it"
        )


def _example(data: Data, graph: int) -> tuple[Any, ...]:
    """Split, text, graph (None without nodes) and class."""
    where = _name(graph)
    split, text = _text(data, "split", where), _filled(data, where)
    _require_split(split, where)
    label = _single(getattr(data, "y", None))
    if not isinstance(label, int) or abs(label) >= 2**63:
        raise InputError(f"{where} has {quoted(label)} as y, expected the number of its class")
    return split, text, _id(data, graph), int(label)


def _id(data: Data, graph: int) -> int | None:
    """The id of a graph in the tables; None if it has no nodes, so that its text has no graph."""
    return graph if data.node_text else None


def _single(value: object) -> object:
    """The number in a tensor or an array of one; anything else as it is."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        found = value.reshape(-1).tolist()
        return found[0] if len(found) == 1 else value
    return value


def _listed(values: object) -> list[Any] | None:
    """What is in a tensor, an array or a list, in a row; None if it is none of them."""
    if isinstance(values, torch.Tensor | np.ndarray | np.generic):
        return values.reshape(-1).tolist()
    if isinstance(values, list | tuple):
        return [_single(value) for value in values]
    return None


def _table(rows: _Rows, schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema.names)
    arrays = [pa.array(list(c), t) for c, t in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def _write(folder: Path, tables: dict[str, pa.Table]) -> dict[str, str]:
    """All files or none."""
    paths = {name: folder / f"{name}.parquet" for name in tables}
    if there := [path for path in paths.values() if path.exists()]:
        raise InputError(f"{there[0]} exists; give another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder))
    try:
        for name, path in paths.items():
            pq.write_table(tables[name], draft / path.name)
        for path in paths.values():
            (draft / path.name).rename(path)
    finally:
        shutil.rmtree(draft)
    return {name: str(path) for name, path in paths.items()}
