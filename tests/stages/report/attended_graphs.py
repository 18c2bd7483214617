"""Results with attention in graphs, as a scorer saves them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from permafrost.stages.metrics.graph_attention import (
    ATTENTION_EDGES,
    ATTENTION_NODES,
    GraphAttention,
)

Triple = tuple[int, str, int]
"""Head and tail by number, from 1: 0 is the query node."""


def item(
    number: int,
    labels: Sequence[str],
    types: Sequence[int],
    triples: Sequence[Triple],
    *,
    case: int = 0,
    text: str = "where?",
    right: bool = True,
    given: bool = True,
    place: int | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of nodes and edges; an item's place in its case is its number, if not given.

    Every node divides 1 among its outgoing edges and itself, more to nodes with higher numbers.
    """
    forward = [*triples]
    for node, kind in enumerate(types, start=1):
        if kind < 2:
            forward.append((0, ("query entity", "answer entity")[kind], node))
    edges = [*forward, *((t, f"^{r}", h) for h, r, t in forward)]
    own = np.arange(1.0, len(labels) + 2)
    weights = np.array([own[target] for _, _, target in edges])
    totals = own.copy()
    np.add.at(totals, [source for source, _, _ in edges], weights)
    shared = {"case": case, "place": number if place is None else place, "item": number}
    nodes = [
        {
            **shared,
            "text": text,
            "is_right": right,
            "is_answer": given,
            "node": node,
            "label": None if node == 0 else labels[node - 1],
            "type": 3 if node == 0 else types[node - 1],
            "attention": own[node] / totals[node],
        }
        for node in range(len(labels) + 1)
    ]
    rows = [
        {**shared, "source": s, "target": t, "relation": r, "attention": w / totals[s]}
        for (s, r, t), w in zip(edges, weights.tolist(), strict=True)
    ]
    return nodes, rows


def save_items(folder: Path, *items: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Write the files of these items."""
    nodes = [row for some, _ in items for row in some]
    edges = [row for _, some in items for row in some]
    GraphAttention(
        *(
            pa.table({name: [row[name] for row in rows] for name in schema.names}, schema=schema)
            for rows, schema in ((nodes, ATTENTION_NODES), (edges, ATTENTION_EDGES))
        )
    ).save(folder)


def kitchen(
    number: int, choice: str, case: int = 0, place: int | None = None, **verdict: bool
) -> Any:
    """An item of a question with three nodes."""
    return item(
        number,
        ["cup", choice, "water"],
        [0, 1, 2],
        [(1, "atLocation", 2), (1, "usedFor", 3)],
        case=case,
        text=f"where is the cup? {choice}",
        place=place,
        **verdict,
    )
