"""What of an experiment's texts is not extracted yet."""

from dataclasses import dataclass

from permafrost.flows.nodes.corpora import CorpusStage
from permafrost.flows.nodes.extraction import Extract, planned
from permafrost.flows.running import Checked, backbone_part, not_done
from permafrost.flows.why.reasons import Reasons
from permafrost.storage.keys import digest


@dataclass(frozen=True)
class News:
    """What of an experiment's texts is not extracted yet."""

    nodes: tuple[str, ...]
    """Ids of the nodes that would run; none if nothing is new."""
    told: tuple[str, ...]
    """What is new, for people, corpus by corpus."""
    content: str
    """Digest of all that the sources hold now."""
    n_corpora: int
    """Corpora that were looked at."""
    n_waiting: int
    """Nodes that need no backbone and are not done."""


def whats_new(found: Checked) -> News:
    """What differs between the sources of an experiment and what is extracted."""
    graph, context = found.nodes.graph, found.context
    part = backbone_part(graph)
    left = not_done(part, context)
    plans = {node.id: planned(node, context) for node in left if node.stage == Extract.name}
    reasons = Reasons(graph, context, plans, all_told=False)
    told = [
        f"{node.label}: {reasons.why(node).headline}"
        for node in left
        if node.stage in (CorpusStage.name, Extract.name) and node.id in reasons.waiting
    ]
    return News(
        nodes=tuple(node.id for node in left),
        told=tuple(told) or tuple(node.label for node in left),
        content=digest(sorted(node.id for node in part)),
        n_corpora=sum(node.stage == CorpusStage.name for node in part),
        n_waiting=len(not_done(graph, context)) - len(left),
    )
