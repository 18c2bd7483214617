"""A user's graphs in tables: two rooms and what is in them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NODES = [
    ("graph", "node", "text"),
    ("g1", 1, "cup"),
    ("g1", 2, "kitchen"),
    ("g1", 3, "tea"),
    ("g2", 1, "spade"),
    ("g2", 2, "garden"),
]
EDGES = [
    ("graph", "source", "target", "relation"),
    ("g1", 1, 2, "atLocation"),
    ("g1", 3, 1, "in"),
    ("g2", 1, 2, "atLocation"),
]
EXAMPLES = [
    ("split", "text", "graph", "label"),
    *(
        (
            split,
            f"{split} the {thing} is {'here' if yes else 'away'}",
            graph,
            "yes" if yes else "no",
        )
        for split in ("train", "dev", "test")
        for thing, graph in (("cup", "g1"), ("spade", "g2"))
        for yes in (True, False)
    ),
]
CHOICES = [
    ("split", "case", "text", "graph", "label"),
    *(
        (split, f"{split} 1", f"{split} where is the cup? {place}", "g1", int(place == "kitchen"))
        for split in ("train", "dev", "test")
        for place in ("kitchen", "garden", "street")
    ),
]
SEARCHES = [
    ("split", "query", "query_graph", "document", "document_graph", "label"),
    ("train", "a cup", "", "All about kitchens", "g1", 1),
    ("train", "a cup", "", "All about gardens", "g2", 0),
    ("test", "a spade", "g2", "All about gardens", "g2", 2),
]
Rows = Sequence[Sequence[Any]]


def write(
    folder: Path, nodes: Rows = NODES, edges: Rows = EDGES, examples: Rows = EXAMPLES
) -> dict[str, Any]:
    """The tables as csv, and the fields of their source."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"nodes": nodes, "edges": edges, "examples": examples}
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return {"kind": "graphs", **{name: str(folder / f"{name}.csv") for name in tables}}
