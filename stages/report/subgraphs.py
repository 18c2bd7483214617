"""Graphs of a few test cases with the attention in them: which ones, which of their nodes, and how much.

The attention of a node is what it gets from the nodes of its graph: with a softmax over a node's outgoing
edges what they send to it, with one over incoming edges what they take from it. A node gives away 1 in all.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from permafrost.stages.metrics.graph_attention import GraphAttention, read_graph_attention
from permafrost.stages.metrics.vector_map import spread_evenly
from permafrost.stages.report.cells import CellResult, TaskCorpus
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.errors import by_dev

MOST_NODES = 25
"""Maximum number of nodes in a drawing."""
_MOST_ENTITIES = 12
"""Of them, entities of query and answer that are kept however little attention they get."""
QUERY_ENTITY, ANSWER_ENTITY, OTHER, QUERY_NODE = range(4)
"""Types of nodes, as in the files."""
_INVERSE = "^"


@dataclass(frozen=True)
class GraphNode:
    """A node of a drawing."""

    label: str
    type: int
    attention: float
    """In units of the mean over the nodes of its graph."""


@dataclass(frozen=True)
class GraphEdge:
    """Everything between two nodes of a drawing."""

    ends: tuple[int, int]
    """Indices of the nodes, ascending."""
    forward: tuple[str, ...]
    """Names of relations from the first node to the second."""
    backward: tuple[str, ...]
    """Names of relations from the second node to the first."""
    attention: tuple[float, float]
    """On the edges from the first node to the second, and back: inverse edges count as what they are."""
    is_of_query: bool
    """Whether an end is the query node."""


@dataclass(frozen=True)
class Subgraph:
    """The graph of one item."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    n_nodes: int
    """Number of nodes of the whole graph."""
    caption: str
    """Whose graph it is."""

    @property
    def n_left_out(self) -> int:
        """Nodes that are not drawn."""
        return self.n_nodes - len(self.nodes)


@dataclass(frozen=True)
class Answer:
    """A choice, a class, or a document that is right if it is relevant and given if it was found first."""

    text: str
    is_right: bool
    is_given: bool


@dataclass(frozen=True)
class GraphExample:
    """A test case, what was answered, and the graphs that the answer was read from."""

    task: str
    method: str
    seed: int
    text: str
    answers: tuple[Answer, ...]
    graphs: tuple[Subgraph, ...]
    """Of a question those of the right choice and of the given one; of a search those of the query and of
    documents that have one."""
    is_search: bool = False

    @property
    def is_correct(self) -> bool:
        """Whether the right answer was given, or a relevant document found first."""
        return all(a.is_right == a.is_given for a in self.answers)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.is_search:
            return f"first document {'relevant' if self.is_correct else 'not relevant'}"
        return "correct" if self.is_correct else "wrong"


def graph_examples(
    results: Sequence[CellResult], config: ReportConfig, corpora: Mapping[str, TaskCorpus]
) -> tuple[GraphExample, ...]:
    """Cases of the tasks in turn: of a task for which the config chooses some all of these, of the others
    `n_examples` together, each task's spread evenly over those that were kept.

    Of each task the method with the best dev score, the mean over its seeds, among those with attention in
    graphs, the first if several are equal, with its smallest seed; of methods with different metrics, which
    cannot be compared, among those with the task's first. Controls are not shown.

    Raises:
        CorruptDataError: a file cannot be read.
    """
    shown = _shown(results)
    others = [result.cell.task for result, _ in shown if result.cell.task not in config.graphs_of]
    examples: list[list[GraphExample]] = []
    for result, attention in shown:
        cell = result.cell
        cases = list(dict.fromkeys(attention.nodes.column("case").to_pylist()))
        share = len(cases)
        if cell.task in others:
            share = len(range(others.index(cell.task), config.n_examples, len(others)))
        picked = [cases[at] for at in spread_evenly(len(cases), share).tolist()]
        names = corpora[cell.task].label_names if cell.task in corpora else ()
        examples.append([_example(result, attention, case, names) for case in picked])
    turns = range(max(map(len, examples), default=0))
    return tuple(some[turn] for turn in turns for some in examples if turn < len(some))


def _shown(results: Sequence[CellResult]) -> list[tuple[CellResult, GraphAttention]]:
    of_task: dict[str, dict[str, list[CellResult]]] = {}
    for r in results:
        by_metric = of_task.setdefault(r.cell.task, {})
        if r.cell.role != "control":
            by_metric.setdefault(r.metrics.metric, []).append(r)
    found = (_first_with_graphs(by_metric) for by_metric in of_task.values())
    return [one for one in found if one is not None]


def _first_with_graphs(
    by_metric: Mapping[str, Sequence[CellResult]],
) -> tuple[CellResult, GraphAttention] | None:
    for of_metric in by_metric.values():
        for result in by_dev(of_metric):
            if (attention := read_graph_attention(result.cell.folder)) is not None:
                return result, attention
    return None


def _example(
    result: CellResult, attention: GraphAttention, case: int, names: tuple[str, ...]
) -> GraphExample:
    cell, is_search = result.cell, result.metrics.metric == "ndcg_at_10"
    nodes = [row for row in attention.nodes.to_pylist() if row["case"] == case]
    edges = [row for row in attention.edges.to_pylist() if row["case"] == case]
    items = {row["place"]: row for row in nodes}
    text, endings = _divided([row["text"] for row in items.values()])
    drawn, captions = list(items), dict[int, str]()
    if is_search:
        (query, asked), *documents = items.items()
        text = asked["text"]
        answers = tuple(Answer(d["text"], d["is_right"], d["is_answer"]) for _, d in documents)
        captions = {query: "the query", **{item: d["text"] for item, d in documents}}
        have_own = {row["place"] for row in nodes if row["type"] != QUERY_NODE}
        drawn = [query, *(item for item, _ in documents if item in have_own)]
    elif len(items) > 1:
        answers = tuple(
            Answer(ending, row["is_right"], row["is_answer"])
            for ending, row in zip(endings, items.values(), strict=True)
        )
        wanted = [i for i, row in items.items() if row["is_right"]]
        drawn = list(dict.fromkeys(wanted + [i for i, r in items.items() if r["is_answer"]]))
        captions = dict(zip(items, endings, strict=True))
    else:
        (row,) = items.values()
        classes = names if len(names) == 2 else ("class 0", "class 1")
        answers = tuple(
            Answer(name, row["is_right"] == bool(at), row["is_answer"] == bool(at))
            for at, name in enumerate(classes)
        )
    graphs = [
        _subgraph(
            [row for row in nodes if row["place"] == item],
            [row for row in edges if row["place"] == item],
            captions.get(item, ""),
        )
        for item in drawn
    ]
    return GraphExample(
        *(cell.task, cell.method, cell.seed, text, answers, tuple(graphs)), is_search
    )


def _divided(texts: Sequence[str]) -> tuple[str, list[str]]:
    """What texts begin with in common, in whole words, and how each goes on; all of each text if nothing is
    left of one."""
    if len(texts) == 1:
        return texts[0], [""]
    words = [text.split(" ") for text in texts]
    n = next(
        (i for i, column in enumerate(zip(*words, strict=False)) if len(set(column)) > 1),
        min(map(len, words)),
    )
    endings = [" ".join(some[n:]) for some in words]
    return (" ".join(words[0][:n]), endings) if all(endings) else ("", list(texts))


def _subgraph(nodes: Sequence[dict], edges: Sequence[dict], caption: str) -> Subgraph:
    attention = {row["node"]: 2 * row["attention"] - 1 for row in nodes}
    for row in edges:
        attention[row["source"]] += row["attention"]
        attention[row["target"]] += row["attention"]
    mean = sum(attention.values()) / len(attention)
    by_weight = sorted(nodes, key=lambda row: (-attention[row["node"]], row["node"]))
    entities = [r["node"] for r in by_weight if r["type"] in (QUERY_ENTITY, ANSWER_ENTITY)]
    query = [r["node"] for r in nodes if r["type"] == QUERY_NODE]
    kept = _kept([*query, *entities[:_MOST_ENTITIES]], [r["node"] for r in by_weight], edges)
    place = {node: at for at, node in enumerate(kept)}
    row_of = {row["node"]: row for row in nodes}
    return Subgraph(
        nodes=tuple(
            GraphNode(
                "text" if row_of[n]["label"] is None else row_of[n]["label"],
                row_of[n]["type"],
                attention[n] / mean if mean > 0 else 1.0,
            )
            for n in kept
        ),
        edges=_edges(edges, place, {place[n] for n in query if n in place}),
        n_nodes=len(nodes),
        caption=caption,
    )


def _kept(first: Sequence[int], ranked: Sequence[int], edges: Sequence[dict]) -> list[int]:
    """The first nodes, and of the others the best that is joined to one that is kept, and so on; one that is
    not joined to any only if no other is left."""
    neighbours: dict[int, set[int]] = defaultdict(set)
    for row in edges:
        neighbours[row["source"]].add(row["target"])
    kept = dict.fromkeys(first)
    while len(kept) < min(MOST_NODES, len(ranked)):
        others = [node for node in ranked if node not in kept]
        joined = (node for node in others if neighbours[node] & kept.keys())
        kept[next(joined, others[0])] = None
    return sorted(kept)


def _edges(
    rows: Sequence[dict], place: Mapping[int, int], query: set[int]
) -> tuple[GraphEdge, ...]:
    names: dict[tuple[int, int], tuple[dict[str, None], dict[str, None]]] = {}
    weights: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        if row["source"] not in place or row["target"] not in place:
            continue
        source, target = place[row["source"]], place[row["target"]]
        pair, way = (min(source, target), max(source, target)), int(source > target)
        if source == target:
            continue
        weights[pair][way] += row["attention"]
        name, is_inverse = row["relation"].removeprefix(_INVERSE), row["relation"][:1] == _INVERSE
        names.setdefault(pair, ({}, {}))[way ^ is_inverse][name] = None
    return tuple(
        GraphEdge(
            pair,
            tuple(there),
            tuple(back),
            (weights[pair][0], weights[pair][1]),
            bool(query & {*pair}),
        )
        for pair, (there, back) in sorted(names.items())
    )
