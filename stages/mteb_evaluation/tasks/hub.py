"""Tasks of mteb, by name."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.mteb_evaluation.task import (
    MAIN_SCORE,
    EvaluationTask,
    LoadedTask,
    Prompts,
    Role,
    TaskCategory,
)


class HubTask(EvaluationTask):
    """A task of mteb, with data from the hub (or its local cache).

    ```yaml
    STS17: {kind: mteb, name: STS17, subsets: [en-en]}
    ```
    """

    texts_known: ClassVar[bool] = False

    kind: Literal["mteb"] = "mteb"
    name: str
    """mteb's name of the task."""
    revision: str | None = None
    """Commit of the dataset; if not given, the one that the installed mteb pins."""
    languages: tuple[str, ...] = ()
    """Only subsets in these languages (`eng`, `deu-Latn`) and no others; all if not given."""
    subsets: tuple[str, ...] = ()
    """Only these subsets of the dataset; all if not given."""
    splits: tuple[str, ...] = ()
    """Only these splits of the dataset, also such as mteb does not score (`train`, `validation`); mteb's
    default splits if not given."""

    @property
    def category(self) -> TaskCategory:
        """From mteb's metadata of the task.

        Raises:
            InputError: mteb has no such task, or it is not about text.
        """
        from permafrost.stages.mteb_evaluation.hub import category_of

        return category_of(self.name)

    @property
    def roles(self) -> tuple[Role, ...]:
        """From mteb's class of the task; raises as `category`."""
        from permafrost.stages.mteb_evaluation.hub import roles_of

        return roles_of(self.name)

    def facts(self) -> dict[str, Any]:
        """All fields, with the commits that mteb pins; raises as `category`."""
        from permafrost.stages.mteb_evaluation.hub import find_task, hub_facts

        return hub_facts(self, find_task(self))

    def scored_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Dataset, configuration and split of each part, whatever commit of it is read: mteb names the
        configuration with the dataset, or it is a subset."""
        sources: Any = facts["dataset"]
        of_parts = sources if isinstance(sources, list) else [sources]
        return frozenset(
            f"{source['path']} {_configuration(source.get('name'), subset)} {split}"
            for source in of_parts
            for subset in facts["subsets"]
            for split in facts["splits"]
        )

    def texts_in(self, role: Role) -> Corpus:
        """Recorded in a dry run of mteb, with the data of the hub."""
        from permafrost.stages.mteb_evaluation.recording import hub_corpus

        return hub_corpus(self, role)

    def load(self, name: str) -> LoadedTask:
        """With the data of the hub."""
        from permafrost.stages.mteb_evaluation.hub import load_task

        return LoadedTask(load_task(self), MAIN_SCORE)

    def mteb_name(self, name: str) -> str:
        """mteb's, whatever the experiment calls it."""
        return self.name

    def mteb_prompts(self, name: str) -> Prompts:
        """From its metadata or its class; raises as `category`."""
        from permafrost.stages.mteb_evaluation.hub import prompts_by_name

        return prompts_by_name(self.name)


def _configuration(name: str | None, subset: str) -> str:
    if name is None or subset == name:
        return subset
    return name if subset == "default" else f"{name} {subset}"
