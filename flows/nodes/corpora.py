"""Corpora of tasks, and of the texts that evaluation tasks ask for."""

from abc import abstractmethod

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node, Resources
from permafrost.flows.nodes.reading import corpus_input
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CORPUS_SOURCES, CorpusConfig, TaskSource
from permafrost.stages.mteb_evaluation.evaluate import TaskFacts, task_facts
from permafrost.stages.mteb_evaluation.task import EVALUATION_TASKS, MtebTask, Role
from permafrost.storage.artifacts import Draft
from permafrost.storage.errors import ChangedError
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress, SilentProgress


def corpus_node(task: str, config: CorpusConfig) -> Node:
    """The corpus of a task; names of files and branches are replaced by what they stand for."""
    facts = {"task": task, "config": config.model_dump(mode="json")}
    return BuildCorpus.node(
        f"corpus {task}",
        config.facts(),
        (),
        kinds=(config,),
        run_facts=facts,
        resources=Resources(backbone=config.runs_a_model),
    )


def texts_node(name: str, config: MtebTask, role: Role, facts: TaskFacts) -> Node:
    """The texts that a task asks for in one role, so that they are extracted with all others."""
    stage = BuildTexts if config.texts_known else BuildHubTexts
    return stage.node(
        f"corpus {name}",
        {"kind": "mteb_texts", "role": role, "task": facts.key},
        (),
        kinds=(config,),
        run_facts={"task": name, "config": config.model_dump(mode="json"), "role": role},
    )


class CorpusStage(Stage):
    """Makes a corpus, which others may also look at before it is published."""

    name = "corpus"

    @classmethod
    def known_ahead(cls, node: Node, context: RunContext) -> bool:
        """Whether plans and checks may build it in memory."""
        return True

    @classmethod
    @abstractmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        """The corpus in memory.

        Raises:
            InputError: its source is wrong.
            ChangedError: it is no longer what the key was made of.
        """

    @classmethod
    def build_showing(cls, node: Node, context: RunContext, progress: Progress) -> Corpus:
        """As `build`; what takes long tells `progress`."""
        return cls.build(node, context)

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        corpus = context.built.pop(node.id, None) or cls.build_showing(node, context, progress)
        corpus.save(draft.folder)
        draft.summary = {"task": node.run_facts["task"], "kind": corpus.task, **corpus.counts()}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        if context.is_known(source := corpus_input(node)):
            context.corpus(source)


class BuildCorpus(CorpusStage):
    """Reads or generates the texts and examples of a task."""

    @classmethod
    def known_ahead(cls, node: Node, context: RunContext) -> bool:
        return _source_of(node).known_ahead

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        return cls.build_showing(node, context, SilentProgress())

    @classmethod
    def build_showing(cls, node: Node, context: RunContext, progress: Progress) -> Corpus:
        config, device = _source_of(node), context.runtime.extract.device
        if config.runs_a_model:
            context.backbone.hold(device, progress)
        corpus = config.build_showing(progress, device)
        _require_unchanged(node, to_plain(config.facts()))
        return corpus


class BuildTexts(CorpusStage):
    """Reads the texts of a local evaluation task in one role."""

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        config = EVALUATION_TASKS.validate(node.run_facts["config"])
        corpus = config.texts_in(node.run_facts["role"])
        _require_unchanged(node, {**node.config, "task": to_plain(task_facts(config).key)})
        return corpus


class BuildHubTexts(CorpusStage):
    """Has the hub give the data of an evaluation task, and keeps its texts in one role."""

    @classmethod
    def known_ahead(cls, node: Node, context: RunContext) -> bool:
        return False  # plans and checks fetch nothing

    @classmethod
    def build(cls, node: Node, context: RunContext) -> Corpus:
        config = EVALUATION_TASKS.validate(node.run_facts["config"])
        return config.texts_in(node.run_facts["role"])


def _source_of(node: Node) -> TaskSource:
    return CORPUS_SOURCES.validate(node.run_facts["config"])


def require_task_unchanged(config: MtebTask, key: object, label: str) -> None:
    """Check that the data of an evaluation task, which were read again, are those that the key was made of.

    Args:
        config: of the task.
        key: what the node's config has of it.
        label: of the node.

    Raises:
        ChangedError: they are not.
    """
    if to_plain(task_facts(config).key) != key:
        raise ChangedError(
            f"the data of '{label}' changed after they were looked at; nothing was published. Leave them "
            "alone and run again"
        )


def _require_unchanged(node: Node, now: object) -> None:
    """A key stands for the bytes that were hashed; others must not be published under it."""
    if now != node.config:
        raise ChangedError(
            f"the source of '{node.label}' changed while it was read; leave it alone and run again"
        )
