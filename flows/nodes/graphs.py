"""Texts of corpora with graphs in other roles, as corpora of their own, so that their features are stored."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.corpora import CorpusStage
from permafrost.flows.nodes.extraction import source_of
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.lengths import kept_cuts
from permafrost.stages.extraction.recipes.recipe import recipe_identity
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.views import Place, descriptions_view, labels_view
from permafrost.storage.keys import to_plain

_GRAPHS = "graphs"
_VIEW = "graph_texts"


def graphs_input(node: Node, name: str = _GRAPHS) -> Input:
    """The corpus that a node makes, with its graphs, as another node's input."""
    return Input(name=name, ref=node.id, loader=import_path(GraphCorpus.load))


def graphs_of(node: Node, context: RunContext, name: str = _GRAPHS) -> GraphCorpus:
    """The corpus with graphs that a node reads. Raises as `RunContext.open`."""
    # By the loader of the input.
    return cast(GraphCorpus, context.corpus(node.input(name)))


def labels_node(graphs: Node) -> Node:
    """The labels of the nodes of a corpus' graphs: example i is label i."""
    task = f"{graphs.run_facts['task']} labels"
    return BuildLabels.node(
        f"corpus {task}",
        {"kind": _VIEW, "role": "labels"},
        (graphs_input(graphs),),
        run_facts={"task": task},
    )


def descriptions_node(graphs: Node, target: ExtractTarget, place: Place = "before") -> Node:
    """The descriptions of a corpus' graphs beside the texts of its items: example i is item i.

    Args:
        graphs: of the corpus.
        target: of the backbone that reads them; where a description is too long for it, triples are left out.
        place: of a description.
    """
    task = f"{graphs.run_facts['task']} descriptions"
    identity = target.identity
    return BuildDescriptions.node(
        f"corpus {task}",
        {
            "kind": _VIEW,
            "role": "descriptions",
            "place": place,
            # Of config.json as well, by which transformers chooses the tokenizer's class.
            "weights_digest": identity.weights_digest,
            "tokenizer_digest": identity.tokenizer_digest,
            "recipe": recipe_identity(target.recipe),
            "max_length": identity.max_length,
        },
        (graphs_input(graphs),),
        kinds=(target.recipe,),
        run_facts={"task": task, "identity": to_plain(identity), "backbone": source_of(target)},
    )


def are_descriptions(node: Node) -> bool:
    """Whether a node is `descriptions_node`'s."""
    return node.config.get("kind") == _VIEW and node.config.get("role") == "descriptions"


def left_out_note(corpora: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """A sentence on triples that descriptions leave out, if there are any.

    Args:
        corpora: summary of each corpus of descriptions.
    """
    told = [
        f"{c['task']} {c['n_triples_left_out']:,} of {c['n_triples']:,}"
        for c in corpora
        if c["n_triples_left_out"]
    ]
    if not told:
        return ()
    return (
        f"Triples of graphs for which `max_length` leaves no room beside the text: {'; '.join(told)}.",
    )


class _View(CorpusStage):
    @classmethod
    def known_ahead(cls, node: Node, context: RunContext) -> bool:
        return context.is_known(node.input(_GRAPHS))


class BuildLabels(_View):
    """Takes the labels of nodes as texts."""

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        return labels_view(graphs_of(node, context))


class BuildDescriptions(_View):
    """Writes graphs out as texts."""

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        target = context.bare_target(node)
        with kept_cuts(target, node.ref.key) as are_cut:
            return descriptions_view(graphs_of(node, context), node.config["place"], are_cut)
