"""Why nodes of a graph would run."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from permafrost.flows.graph import Graph, Node
from permafrost.flows.nodes.extraction import Extract
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.preview import Preview
from permafrost.flows.why.changed_texts import CorpusParts, TextCounts
from permafrost.flows.why.earlier import Earlier
from permafrost.flows.why.explaining import Explainer
from permafrost.flows.why.explanation import Explanation
from permafrost.stages.extraction.planning import ExtractionPlan
from permafrost.storage.artifacts import parse_ref

UNKNOWN_STORE = "of an adapted backbone; the id of its store is known after training"

STORED = "every text is stored"


class Reasons:
    """Compares nodes with what is published.

    Args:
        graph: of the experiment.
        context: a preview of it.
        extractions: what the stores lack for each extraction, by node; None while its texts are not known.
        all_told: whether every node that waits is explained, so that none has to say what began upstream.
    """

    def __init__(
        self,
        graph: Graph,
        context: Preview,
        extractions: Mapping[str, ExtractionPlan | None],
        *,
        all_told: bool,
    ) -> None:
        self._graph, self._context, self._extractions = graph, context, extractions
        self._all_told = all_told
        self.earlier = Earlier(context.artifacts)

    @cached_property
    def waiting(self) -> dict[str, Node]:
        """Nodes that would run, by id, in the order of the graph."""
        return {node.id: node for node in self._graph if self._would_run(node)}

    def _would_run(self, node: Node) -> bool:
        if not self._context.artifacts.is_done(node.ref):
            return True
        plan = self._extractions.get(node.id)
        return node.stage == Extract.name and (plan is None or not plan.nothing_to_do)

    def why(self, node: Node) -> Explanation:
        """Why a node would run that is waiting."""
        if (lost := self._lost(node)) is not None:
            return Explanation(None, node.label, lost=lost)
        return replace(self._explainer.why(node.spec, node.origins), amount=self._amount(node))

    @cached_property
    def _explainer(self) -> Explainer:
        told = frozenset(self.waiting) if self._all_told else frozenset[str]()
        return Explainer(self.earlier, self._parts, {n.id: n for n in self._graph}, told)

    def _parts(self, ref: str) -> CorpusParts | None:
        """The texts of a corpus, published or built."""
        if ref in self._graph and self._context.is_known(source := corpus_input(self._graph[ref])):
            corpus = self._context.corpus(source)
            return CorpusParts.of((corpus.digests,), corpus.examples, corpus.label_names)
        return CorpusParts.stored(self._context.artifacts.folder(parse_ref(ref)))

    def _lost(self, node: Node) -> str | None:
        """Why an extraction would run that is published, or whose store is not known."""
        stores = node.inputs_named("store") if node.stage == Extract.name else ()
        if not all(self._context.artifacts.is_done(parse_ref(i.ref)) for i in stores):
            return UNKNOWN_STORE
        if not self._context.artifacts.is_done(node.ref):
            return None
        plan = self._extractions.get(node.id)
        if plan is None:
            return "its texts are not published (any more)"
        n_cells = sum(map(len, plan.cells.values()))
        return f"{plan.n_new_texts:,} texts and {n_cells:,} cells are not in the feature store (any more)"

    def _amount(self, node: Node) -> str:
        """What an extraction with other texts comes to."""
        plan = self._extractions.get(node.id)
        if plan is None:
            return ""
        if plan.nothing_to_do:
            return STORED
        return str(TextCounts(new=plan.n_new_texts, gone=0, changed=0, relabelled=0))
