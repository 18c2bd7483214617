"""Which kinds a node's config names although their code is not in its key."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from permafrost.flows.graph import Node
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.kinds import all_categories


def unkeyed_kinds(nodes: Iterable[Node]) -> set[tuple[str, str]]:
    """Stage and kind, of all nodes whose key has code; a kind of a name that several have counts as there if
    one of them is. What a report lists, and the kind of a corpus' task, are other things of that name."""
    named: dict[str, list[type]] = {}
    for category in all_categories():
        if category.packages[0].startswith("permafrost.stages"):
            for name, cls in category.kinds().items():
                named.setdefault(name, []).append(cls)
    return {
        (node.stage, name)
        for node in nodes
        if node.code and node.stage != "report"
        for name in {*_names(node.config)}
        - ({*get_args(TaskKind)} if node.stage == "corpus" else set())
        if name in named
        and not any(f"{c.__module__}:{c.__qualname__}" in node.code for c in named[name])
    }


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(name := value.get("kind"), str):
            yield name
        for one in value.values():
            yield from _names(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _names(one)
