"""Instructions of tasks: words that tell a model what a text is embedded for, and how they are placed.

HTP's instructions (appendix B, tables 10 and 11) are in `htp_instructions.csv`: the name in the paper, mteb's
name, the table, the instruction.
"""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from permafrost.stages.mteb_evaluation.task import EvaluationTask, Role
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

TEXT, WORDS = "{text}", "{instruction}"

FormCategory = Literal[
    "BitextMining",
    "Classification",
    "Clustering",
    "InstructionReranking",
    "InstructionRetrieval",
    "MultilabelClassification",
    "PairClassification",
    "Regression",
    "Reranking",
    "Retrieval",
    "STS",
    "Summarization",
    "other",
]
"""mteb's kinds of text task; `other` stands for all that are not listed."""

Forms = Mapping[FormCategory, Mapping[Role, str]]
"""Form by kind of task and role; texts of a role without a form get no instruction."""

_SEARCH: Mapping[Role, str] = {"query": "{instruction} Text: {text}"}
_EVERYWHERE = "{instruction} {text}"
DEFAULT_FORMS: Forms = {
    "STS": {},
    "Retrieval": _SEARCH,
    "InstructionRetrieval": _SEARCH,
    "other": {"text": _EVERYWHERE, "query": _EVERYWHERE, "document": _EVERYWHERE},
}
"""As in HTP (section 5.3, appendix C): for queries only in retrieval, for no text in STS, else for every
text."""


class NoInstructions(BaseModel):
    """No instructions, as in the Value Aggregation paper's rows without prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    methods: ClassVar[tuple[str, ...]] = ()
    tasks: ClassVar[dict[str, str | None]] = {}

    kind: Literal["none"] = "none"

    def around(self, name: str, task: EvaluationTask) -> dict[Role, str]:
        """Nothing; see `task_instructions`."""
        return {}


class _Instructions(BaseModel, ABC):
    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Any
    methods: tuple[str, ...] | None = None
    """Methods that use them; all of the evaluation if not given."""
    tasks: dict[str, str | None] = {}
    """Words for single tasks, instead of those from `kind`; null for none."""
    forms: dict[FormCategory, dict[Role, str]] = {}
    """How words and text are combined, by kind of task and role; overrides `DEFAULT_FORMS`."""

    @field_validator("tasks")
    @classmethod
    def _words_without_slots(cls, tasks: dict[str, str | None]) -> dict[str, str | None]:
        for words in tasks.values():
            require_words(words)
        return tasks

    @field_validator("forms")
    @classmethod
    def _both_slots_once(
        cls, forms: dict[FormCategory, dict[Role, str]]
    ) -> dict[FormCategory, dict[Role, str]]:
        for form in (form for roles in forms.values() for form in roles.values()):
            for slot in (WORDS, TEXT):
                if form.count(slot) != 1:
                    raise ValueError(
                        f"the form {quoted(form)} contains {slot} {form.count(slot)} times; it has to "
                        f"contain it once, as {quoted(_EVERYWHERE)} does"
                    )
        return forms

    def around(self, name: str, task: EvaluationTask) -> dict[Role, str]:
        """The words for the task in the form of each role; see `task_instructions`."""
        known: Mapping[str, Mapping[Role, str]] = {**DEFAULT_FORMS, **self.forms}
        forms = known.get(task.category, known["other"])
        if not forms:
            return {}
        words = _for_all(self.tasks[name]) if name in self.tasks else self.words(name, task)
        return {
            role: form.replace(WORDS, instruction)
            for role, form in forms.items()
            if (instruction := words.get(role)) is not None
        }

    @abstractmethod
    def words(self, name: str, task: EvaluationTask) -> Mapping[Role, str | None]:
        """The words for a task that `tasks` does not name, by role.

        Raises:
            InputError: there are none, or mteb has no such task.
        """

    def _no_words(self, name: str, where: str) -> InputError:
        return InputError(
            f"the instructions are of kind {self.kind!r}, and there is none for the task "
            f"{quoted(name)}: {where}; give its words in 'instructions.tasks', null for none"
        )


class SuiteInstructions(_Instructions):
    """The instructions of the suites: HTP's, by mteb's name of the task; a local task is looked up by its
    name in the experiment."""

    kind: Literal["suite"]

    def words(self, name: str, task: EvaluationTask) -> Mapping[Role, str | None]:
        """Those of the suites."""
        mteb_name, of_suites = task.mteb_name(name), suite_instructions()
        if mteb_name not in of_suites:
            raise self._no_words(name, f"the suites have none for {quoted(mteb_name)}")
        return _for_all(of_suites[mteb_name])


class MtebInstructions(_Instructions):
    """mteb's prompts: `metadata.prompt` or, if a task has none, that of its class, as in mteb itself; a local
    task is looked up by its name in the experiment."""

    kind: Literal["mteb"]

    def words(self, name: str, task: EvaluationTask) -> Mapping[Role, str | None]:
        """mteb's."""
        if (prompts := task.mteb_prompts(name)) is None:
            raise self._no_words(name, f"mteb has no task {quoted(task.mteb_name(name))}")
        return prompts


class CustomInstructions(_Instructions):
    """The user's own words."""

    kind: Literal["custom"]
    others: str | None = None
    """Words for every task that `tasks` does not name."""

    @field_validator("others")
    @classmethod
    def _without_slots(cls, words: str | None) -> str | None:
        require_words(words)
        return words

    def words(self, name: str, task: EvaluationTask) -> Mapping[Role, str | None]:
        """Those for every task."""
        if self.others is None:
            raise self._no_words(name, "'tasks' does not name it and there is no 'others'")
        return _for_all(self.others)


Instructions = Annotated[
    NoInstructions | SuiteInstructions | MtebInstructions | CustomInstructions,
    Field(discriminator="kind"),
]


def require_words(words: str | None) -> None:
    """Refuse an instruction that is blank or contains a slot.

    Raises:
        ValueError: pydantic turns this into its own error.
    """
    if words is None:
        return
    if not words.strip():
        raise ValueError(f"the instruction {quoted(words)} is blank; write null for none")
    if slots := [slot for slot in (TEXT, WORDS, "{first}", "{placeholder}") if slot in words]:
        raise ValueError(
            f"the instruction {quoted(words)} contains {slots[0]}; set where the text goes in 'forms'"
        )


def task_instructions(config: Instructions, name: str, task: EvaluationTask) -> dict[Role, str]:
    """The instruction around the texts of a task, with {text} for the text, by role; other roles have none.

    Args:
        config: of the evaluation.
        name: of the task in the experiment.
        task: the task; its data is not loaded.

    Raises:
        InputError: mteb has no such task, or there are no words for it.
    """
    return config.around(name, task)


def suite_instructions() -> Mapping[str, str]:
    """HTP's instructions, by mteb's name of the task."""
    return {row["mteb"]: row["instruction"] for row in _rows()}


def _for_all(words: str | None) -> Mapping[Role, str | None]:
    return {"text": words, "query": words, "document": words}


@cache
def _rows() -> tuple[Mapping[str, str], ...]:
    text = (files("permafrost.stages.mteb_evaluation") / "htp_instructions.csv").read_text(
        encoding="utf-8"
    )
    return tuple(csv.DictReader(io.StringIO(text)))
