"""What the keys of corpora and evaluations need of data, and what stands there for data that are not here."""

from dataclasses import dataclass, field
from typing import Literal

from permafrost.flows.experiment_files.experiment_file import required_variable
from permafrost.flows.graph import Node
from permafrost.flows.nodes.absent import absent_node
from permafrost.flows.nodes.corpora import corpus_node, texts_node
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.mteb_evaluation.evaluate import TaskFacts, task_facts
from permafrost.stages.mteb_evaluation.task import MtebTask, Role
from permafrost.storage.errors import HubUnreachableError, InputError

MissingData = Literal["refuse", "allow"]
"""What a plan does where data of tasks are not here: refuse the experiment as a run would, or tell what can
be told without them."""

HINT = "'plan --missing-data allow' tells what can be told without it"
"""The end of a plan's message about data that are not here."""

_ABSENT = "absent"


class DataLookup:
    """Looks data up for keys: digests of files, commits of datasets."""

    def corpus(self, task: str, config: CorpusConfig) -> Node:
        """The node of a task's corpus.

        Raises:
            InputError: its data are not here, or cannot be read.
        """
        return corpus_node(task, config)

    def facts(self, task: str, config: MtebTask) -> TaskFacts:
        """What is known of an evaluation task.

        Raises:
            InputError: its data are not here, or mteb has no such task.
        """
        return task_facts(config)

    def texts(self, name: str, config: MtebTask, role: Role, facts: TaskFacts) -> Node:
        """The node of the texts that an evaluation task asks for in one role."""
        return texts_node(name, config, role, facts)

    def is_here(self, task: str) -> bool:
        """Whether the data of a task were found; only of one that was looked up."""
        return True


@dataclass
class LookupForPlans(DataLookup):
    """As `DataLookup`; where data are not here and that is allowed, it keeps what was said, and a node whose
    texts are not known takes their place. Such a graph can be planned and not run."""

    missing_data: MissingData
    missing: dict[str, str] = field(default_factory=dict)
    """By task, why its data could not be looked up."""
    _unset: list[str] = field(default_factory=list)

    def corpus(self, task: str, config: CorpusConfig) -> Node:
        """The node of a task's corpus, or what stands for it."""
        try:
            return super().corpus(task, config)
        except InputError as error:
            self._keep(task, error)
            return absent_node(task, {_ABSENT: config}, config)

    def facts(self, task: str, config: MtebTask) -> TaskFacts:
        """What is known of an evaluation task; of absent data, its settings alone."""
        category = config.category  # of a task that mteb does not have there is none
        try:
            return super().facts(task, config)
        except InputError as error:
            self._keep(task, error)
            settings = {_ABSENT: config.model_dump(mode="json")}
            return TaskFacts(category, settings, frozenset())

    def texts(self, name: str, config: MtebTask, role: Role, facts: TaskFacts) -> Node:
        """The node of the texts, or what stands for it."""
        if _ABSENT not in facts.key:
            return super().texts(name, config, role, facts)
        return absent_node(name, {"role": role, "task": facts.key}, config)

    def is_here(self, task: str) -> bool:
        """Whether the data of a task were found."""
        return task not in self.missing

    def variable(self, name: str, where: str) -> str:
        """As `required_variable`; one that is not set stays as it is written, if that is allowed."""
        try:
            return required_variable(name, where)
        except InputError as error:
            self._require_allowed(error)
            self._unset.append(name)
            return _written(name)

    def _keep(self, task: str, error: InputError) -> None:
        self._require_allowed(error)
        unset = [name for name in dict.fromkeys(self._unset) if _written(name) in str(error)]
        self.missing[task] = f"not set: {', '.join(unset)}" if unset else str(error)

    def _require_allowed(self, error: InputError) -> None:
        if isinstance(error, HubUnreachableError):
            raise error  # of a backbone, for which other rules hold
        if self.missing_data == "refuse":
            error.add_note(HINT)
            raise error


def _written(variable: str) -> str:
    return f"${{{variable}}}"
