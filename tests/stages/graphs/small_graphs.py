"""Small corpora with graphs, one of each task."""

from permafrost.stages.graphs.assembling import Case, Item, Judgement, Searched, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus

RELATIONS = ("atLocation", "isA")


def choices() -> GraphCorpus:
    """Two questions of two choices in train, one in dev and in test; the last choice has no graph."""
    graphs = GraphCollector(len(RELATIONS))
    cases: list[Case] = []
    places = ("kitchen", "garden", "street", "harbour")
    for n, split in enumerate(("train", "train", "dev", "test")):
        items = [
            Item(
                f"where is cup {n}? {place}",
                graphs.add(
                    ["cup", place, "tea"],
                    [(0, 0, 1), (2, 1, 0), (0, 0, 1)],
                    queries=[0],
                    answers=[0, 1],
                    relevance=[0.5, -1.0, 0.25],
                ),
                query=f"where is cup {n}?",
            )
            for place in (places[n], places[n - 1])
        ]
        cases.append(Case(split, tuple(items), n % 2))
    last = cases[-1]
    cases[-1] = Case(last.split, (last.items[0], Item("nowhere", -1)), last.label)
    return assemble("multiple_choice", cases, graphs, RELATIONS)


def matches() -> GraphCorpus:
    """Six texts in every split, each with a graph that tells of it or of something else."""
    graphs = GraphCollector(len(RELATIONS))
    cases = [
        Case(
            split,
            (Item(f"{split} thing {n} is here", graphs.add([f"thing {n}", "here"], [(0, 0, 1)])),),
            n % 2,
        )
        for split in ("train", "dev", "test")
        for n in range(6)
    ]
    return assemble("classification", cases, graphs, RELATIONS, label_names=("other", "same"))


def search() -> GraphCorpus:
    """Two queries, three documents, one of them judged irrelevant."""
    graphs = GraphCollector(len(RELATIONS))
    queries = [Item(f"query {n}", graphs.add([f"topic {n}"], [], queries=[0])) for n in range(2)]
    documents = [
        Item(f"document {n}", graphs.add([f"topic {n}", "paper"], [(0, 1, 1)])) for n in range(3)
    ]
    judged = [(0, 0, 1), (0, 2, 0), (1, 1, 2)]
    splits = ("train", "train", "test")
    cases = [
        Case(s, (queries[q], documents[d]), g) for s, (q, d, g) in zip(splits, judged, strict=True)
    ]
    judgements = [
        Judgement(s, queries[q], documents[d], g)
        for s, (q, d, g) in zip(splits, judged, strict=True)
    ]
    return assemble(
        "unlabelled", cases, graphs, RELATIONS, searched=Searched(documents, judgements)
    )
