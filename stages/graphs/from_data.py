"""Tables of a user's graphs from torch-geometric's `Data`."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch_geometric.data import Data, HeteroData

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_TABLES = {
    "nodes": pa.schema(
        [("graph", pa.int64()), ("node", pa.int64()), ("text", pa.string()), ("type", pa.int64())]
    ),
    "edges": pa.schema(
        [
            ("graph", pa.int64()),
            ("source", pa.int64()),
            ("target", pa.int64()),
            ("relation", pa.string()),
        ]
    ),
    "examples": pa.schema(
        [
            ("split", pa.string()),
            ("text", pa.string()),
            ("graph", pa.int64()),
            ("label", pa.int64()),
        ]
    ),
}


def graphs_from_data(
    data: Iterable[Data | HeteroData],
    folder: str | os.PathLike[str],
    relations: Sequence[str] = ("edge",),
) -> dict[str, str]:
    """Write `nodes.parquet`, `edges.parquet` and `examples.parquet` for a corpus of kind `graphs`.

    One example per `Data`, which has, besides `edge_index` `[2, n_edges]`:

    - `node_text`: one text per node;
    - `edge_type` `[n_edges]`: index into `relations`; may be left out if there is one relation;
    - `node_type` `[n_nodes]`, if any: 0 query entity, 1 answer entity, 2 other, 3 query node;
    - `text`, `y` (a class) and `split` (train, dev or test) of the example.

    An undirected graph has both directions in `edge_index`, so both become triples. Features in `x` are not
    written: nodes are read from their texts.

    Args:
        data: graphs, at least one.
        folder: made if it is not there; must not hold the files yet.
        relations: names of the relations.

    Returns:
        The fields of a source: `{"kind": "graphs", "nodes": ..., "edges": ..., "examples": ...}`.

    Raises:
        InputError: an attribute is missing or does not fit the graph; nothing is written.
    """
    target = Path(folder)
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}
    for graph, one in enumerate(data):
        where = f"graph {graph} of the data"
        if not isinstance(one, Data):
            raise InputError(
                f"{where} is a {type(one).__name__}, expected a torch_geometric.data.Data; a heterogeneous "
                "graph becomes one with to_homogeneous()"
            )
        nodes = _texts(one, where)
        types = _numbers(one, "node_type", len(nodes), 4, where) or [2] * len(nodes)
        rows["nodes"] += [
            (graph, i, t, u) for i, (t, u) in enumerate(zip(nodes, types, strict=True))
        ]
        sources, targets = _ends(one, len(nodes), where)
        found = _numbers(one, "edge_type", len(sources), len(relations), where)
        if found is None and len(relations) > 1:
            raise InputError(
                f"{where} has no edge_type, but there are {len(relations)} relations; give one number per "
                "edge"
            )
        named = [relations[r] for r in (found or [0] * len(sources))]
        rows["edges"] += [(graph, s, t, r) for s, t, r in zip(sources, targets, named, strict=True)]
        split, text, label = _example(one, where)
        rows["examples"].append((split, text, graph, label))
    if not rows["examples"]:
        raise InputError("there are no graphs; give at least one")
    return {"kind": "graphs", **_write(target, rows)}


def _texts(data: Data, where: str) -> list[str]:
    texts = getattr(data, "node_text", None)
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{where} has {quoted(texts)} as node_text, expected a list with one text per node"
        )
    if (n := data.num_nodes) != len(texts):
        raise InputError(
            f"{where} has {n} nodes and {len(texts)} texts in node_text; give one per node"
        )
    return list(texts)


def _ends(data: Data, n_nodes: int, where: str) -> tuple[list[int], list[int]]:
    index = data.edge_index
    if index is None:
        return [], []
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
    found = values.tolist() if isinstance(values, torch.Tensor) else list(values)
    if len(found) != n or not all(isinstance(v, int) and 0 <= v < end for v in found):
        raise InputError(
            f"{where} has {quoted(found)} as {name}, expected {n} whole numbers from 0 to {end - 1}"
        )
    return found


def _example(data: Data, where: str) -> tuple[str, str, int]:
    """Split, text and class."""
    split, text, label = (getattr(data, name, None) for name in ("split", "text", "y"))
    for name, value in (("split", split), ("text", text)):
        if not isinstance(value, str):
            raise InputError(f"{where} has {quoted(value)} as {name}, expected text")
    if isinstance(label, torch.Tensor) and label.numel() == 1:
        label = label.item()
    if not isinstance(label, int):
        raise InputError(f"{where} has {quoted(label)} as y, expected the number of its class")
    assert isinstance(split, str)
    assert isinstance(text, str)
    return split, text, label


def _write(folder: Path, rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, str]:
    """All files or none."""
    paths = {name: folder / f"{name}.parquet" for name in rows}
    if there := [path for path in paths.values() if path.exists()]:
        raise InputError(f"{there[0]} exists; give another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder))
    try:
        for name, path in paths.items():
            schema = _TABLES[name]
            columns = list(zip(*rows[name], strict=True)) or [()] * len(schema.names)
            arrays = [pa.array(list(c), t) for c, t in zip(columns, schema.types, strict=True)]
            pq.write_table(pa.table(arrays, schema=schema), draft / path.name)
        for path in paths.values():
            (draft / path.name).rename(path)
    finally:
        shutil.rmtree(draft)
    return {name: str(path) for name, path in paths.items()}
