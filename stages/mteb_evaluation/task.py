"""The base classes of evaluation tasks: mteb's by name, and tasks of mteb's types from local files."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import field_validator

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.data_files import find_file
from permafrost.stages.corpus.table_files import file_identity
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.texts import texts_corpus
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Role = Literal["text", "query", "document"]
"""The role of a text in a task: a query, a document to be retrieved, or neither (`text`)."""

ROLES: tuple[Role, ...] = ("text", "query", "document")

TaskCategory = str
"""mteb's name of a kind of task: STS, Classification, Retrieval, ..."""

MAIN_SCORE = "main_score"
"""The field in which mteb repeats the score that is the result."""

Prompts = Mapping[Role, str | None]
"""mteb's prompts for the texts of a task, by role."""


@dataclass(frozen=True)
class LoadedTask:
    """A task that mteb can run."""

    task: Any
    """Of mteb's class `AbsTask`, with its data."""
    score: str
    """Which of its scores is the result."""
    n_examples: int | None = None
    """Number of scored examples; if None, mteb's data is counted."""
    class_names: tuple[str, ...] = ()
    """Names by label, if labels are class indices."""


class EvaluationTask(Kind):
    """Texts, and how mteb scores their vectors."""

    texts_known: ClassVar[bool]
    """Whether its texts can be read without fetching anything."""

    @property
    @abstractmethod
    def category(self) -> TaskCategory:
        """mteb's name of its kind of task."""

    @property
    @abstractmethod
    def roles(self) -> tuple[Role, ...]:
        """The roles of its texts."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What enters keys: everything that determines its scores, in plain JSON types.

        Raises:
            InputError: there is no such task, or a file is missing.
        """

    @abstractmethod
    def scored_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Names of the parts of data that it is scored on: where two tasks share one, what is chosen on one
        of them must not be reported on the other.

        Args:
            facts: its own.
        """

    @abstractmethod
    def texts_in(self, role: Role) -> Corpus:
        """The texts that it embeds in one role, as a corpus of kind `unlabelled`, without blank ones.

        Raises:
            InputError: the data cannot be loaded or is wrong, or all texts are blank.
        """

    @abstractmethod
    def load(self, name: str) -> LoadedTask:
        """The task with its data.

        Args:
            name: of the task in the experiment.

        Raises:
            InputError: the data cannot be loaded, or is wrong.
        """

    @abstractmethod
    def mteb_name(self, name: str) -> str:
        """The name by which mteb and the suites may have instructions for it.

        Args:
            name: of the task in the experiment.
        """

    @abstractmethod
    def mteb_prompts(self, name: str) -> Prompts | None:
        """mteb's prompts for its texts; None if mteb has no task of this name.

        Args:
            name: of the task in the experiment.
        """


_FIELDS = {"pairs": "split", "texts": "split", "candidates": "split"}
"""The field that names a file, if it differs from what the file holds."""


class LocalTask(EvaluationTask):
    """A task from local files; its type says what they hold and how mteb scores it.

    ```yaml
    my pairs: {kind: local, type: sts, path: data/pairs}
    ```
    """

    tag: ClassVar[str] = "type"
    texts_known: ClassVar[bool] = True
    mteb_category: ClassVar[TaskCategory]
    default_score: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    """Scores that the installed mteb computes for this type of task; other names are refused at once."""
    scored_files: ClassVar[tuple[str, ...]] = ()
    """What the files hold that it is scored on; all of them if not given."""

    kind: Literal["local"] = "local"
    """Of files on this machine, not of the hub."""
    type: Any
    path: str
    """Folder of the files: .parquet, .jsonl, .csv, .tsv, .json, or a packed one (.csv.gz). File names may be
    given with or without extension; columns that are not named may have another usual name."""
    main_score: str | None = None
    """Which of mteb's scores is the result; if not given, the main score of mteb's own tasks of this type."""

    @field_validator("main_score")
    @classmethod
    def _score_is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in cls.scores:
            near = get_close_matches(value, cls.scores, 5, 0.4)
            listed = list(dict.fromkeys((*near, cls.default_score, *cls.scores)))
            more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
            raise ValueError(
                f"main_score is {quoted(value)}, but tasks of type {cls.mteb_category} have "
                f"{', '.join(listed[:12])}{more}"
            )
        return value

    @property
    @abstractmethod
    def stems(self) -> dict[str, str]:
        """File names without extension, by what the files hold."""

    @abstractmethod
    def read(self) -> LocalData:
        """Read and check the data.

        Raises:
            InputError: a file or column is missing, there are no rows, a value is missing or of the wrong
                type, an id occurs twice, a judgement names an unknown query or document, or nothing can be
                scored.
        """

    @abstractmethod
    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """Texts by role, as mteb passes them to an encoder. An evaluation fails if it needs a text that is
        missing here; superfluous texts only cost time."""

    @abstractmethod
    def mteb_class(self) -> Any:
        """mteb's class of such tasks; importing mteb takes seconds, so it is imported here."""

    def settings(self) -> Mapping[str, Any]:
        """Attributes of mteb's class that are not mteb's defaults."""
        return {}

    def n_scored(self, data: LocalData) -> int:
        """Number of scored examples."""
        return data.n_examples

    @property
    def category(self) -> TaskCategory:
        """That of its type."""
        return self.mteb_category

    @property
    def roles(self) -> tuple[Role, ...]:
        """Texts are neither queries nor documents, unless a type says so."""
        return ("text",)

    @property
    def score(self) -> str:
        """Name of the score that is the result."""
        return self.main_score or self.default_score

    def file(self, holds: str) -> Path:
        """The file that holds this.

        Raises:
            InputError: it is missing, or there are several.
        """
        return find_file(Path(self.path), [self.stems[holds]], _FIELDS.get(holds, holds))

    def digests(self) -> dict[str, str]:
        """Extension and SHA-256 of every file, by what it holds.

        Raises:
            InputError: a file is missing.
        """
        identities = {holds: file_identity(self.file(holds)) for holds in self.stems}
        return {holds: f"{file['format']} {file['sha256']}" for holds, file in identities.items()}

    def facts(self) -> dict[str, Any]:
        """All fields, but the digests of files instead of their folder."""
        return {**self.model_dump(mode="json", exclude={"path"}), "files": self.digests()}

    def scored_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """SHA-256 of the files that it is scored on, whatever they are called."""
        files: Mapping[str, str] = facts["files"]
        return frozenset(files[holds].split()[-1] for holds in self.scored_files or files)

    def texts_in(self, role: Role) -> Corpus:
        """Read from the files; raises as `read`, or if all texts are blank."""
        asked = dict.fromkeys(self.asked_texts(self.read())[role])
        corpus = texts_corpus(asked, role)
        if not corpus.texts:
            raise InputError(
                f"all {len(asked)} texts of the task in {self.path} in the role {role} are blank; name "
                f"another column"
            )
        return corpus

    def load(self, name: str) -> LoadedTask:
        """An instance of mteb's own class with the data of the files; raises as `read`."""
        from permafrost.stages.mteb_evaluation.build import build_task

        data = self.read()
        task = build_task(self, name, data)
        return LoadedTask(task, self.score, self.n_scored(data), data.class_names)

    def mteb_name(self, name: str) -> str:
        """Its name in the experiment."""
        return name

    def mteb_prompts(self, name: str) -> Prompts | None:
        """Those of mteb's task of the same name."""
        from permafrost.stages.mteb_evaluation.hub import has_task, prompts_by_name

        return prompts_by_name(name) if has_task(name) else None


_KINDS = "permafrost.stages.mteb_evaluation.tasks"
LOCAL_TASKS = Category(
    "local evaluation task", LocalTask, _KINDS, other_names={"similarity": "sts"}
)
EVALUATION_TASKS = Category(
    "evaluation task", EvaluationTask, _KINDS, families={"local": LOCAL_TASKS}
)
MtebTask = Annotated[EvaluationTask, EVALUATION_TASKS.field()]
"""Any evaluation task, by its `kind`; a local one by its `type`, too."""
