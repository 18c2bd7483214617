"""Corpora whose data are not on this machine, in plans."""

from pydantic import BaseModel

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.nodes.corpora import CorpusStage
from permafrost.stages.corpus.corpus import Corpus


class DataAbsent(Exception):
    """Texts were asked for that are not on this machine; plans go on with what needs none."""


def absent_node(task: str, stands_for: object, config: BaseModel) -> Node:
    """What stands for a corpus that cannot be looked up.

    Args:
        task: its name.
        stands_for: what it differs by from those of other tasks.
        config: of the task.
    """
    facts = {"task": task, "config": config.model_dump(mode="json")}
    return AbsentCorpus.node(f"corpus {task}", stands_for, (), run_facts=facts)


class AbsentCorpus(CorpusStage):
    """Is planned and never run."""

    @classmethod
    def known_ahead(cls, node: Node, context: RunContext) -> bool:
        return False

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        raise DataAbsent(node.label)
