"""What may run next. Shared by all engines; it runs nothing itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from permafrost.flows.graph import Graph, Node

State = Literal["computed", "reused", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """How a node ended."""

    node: Node
    state: State
    error: BaseException | None = None
    """Of a node that failed."""
    because: Node | None = None
    """The failed node that a skipped one needs."""


class Schedule:
    """Decides which node may start: one whose dependencies are done and whose resources are free.

    A failed node stops those that depend on it, directly or not, and nothing else.

    Args:
        graph: all nodes.
        in_the_way: whether two nodes cannot run side by side where they are computed.
    """

    def __init__(self, graph: Graph, in_the_way: Callable[[Node, Node], bool]) -> None:
        self._in_the_way = in_the_way
        self._missing = {node.id: set(node.upstream) for node in graph}
        self._downstream: dict[str, list[str]] = {node.id: [] for node in graph}
        for node in graph:
            for ref in node.upstream:
                self._downstream[ref].append(node.id)
        self._waiting = {node.id: node for node in graph.ordered()}
        self._running: dict[str, Node] = {}
        self.outcomes: dict[str, Outcome] = {}
        """By node, in the order in which they ended."""

    @property
    def finished(self) -> bool:
        """Whether every node has ended."""
        return not self._waiting and not self._running

    @property
    def n_running(self) -> int:
        """Nodes that were started and have not ended."""
        return len(self._running)

    @property
    def needs_backbone(self) -> bool:
        """Whether a node that has not ended runs the backbone."""
        left = (*self._waiting.values(), *self._running.values())
        return any(node.resources.backbone for node in left)

    def next(self) -> Node | None:
        """The first node of the graph that could be started now."""
        return next(self._ready(), None)

    def _ready(self) -> Iterator[Node]:
        for node in self._waiting.values():
            if not self._missing[node.id] and not self._is_blocked(node):
                yield node

    def _is_blocked(self, node: Node) -> bool:
        return any(self._block_each_other(node, other) for other in self._running.values())

    def _block_each_other(self, one: Node, other: Node) -> bool:
        one_store = not set(one.resources.stores).isdisjoint(other.resources.stores)
        return one_store or self._in_the_way(one, other)

    def start(self, node: Node) -> None:
        """Mark a node as running."""
        self._running[node.id] = self._waiting.pop(node.id)

    def end(self, node: Node, state: State, error: BaseException | None = None) -> list[Outcome]:
        """Record the end of a node; returns its outcome, and those of the nodes skipped because of it."""
        del self._running[node.id]
        ended = [Outcome(node, state, error)]
        if state == "failed":
            ended += self._skip(node)
        else:
            for ref in self._downstream[node.id]:
                self._missing[ref].discard(node.id)
        self.outcomes |= {o.node.id: o for o in ended}
        return ended

    def _skip(self, cause: Node) -> list[Outcome]:
        skipped: list[Outcome] = []
        queue = list(self._downstream[cause.id])
        while queue:
            if (node := self._waiting.pop(queue.pop(0), None)) is not None:
                skipped.append(Outcome(node, "skipped", because=cause))
                queue += self._downstream[node.id]
        return skipped
