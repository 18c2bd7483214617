"""Evaluation tasks: mteb's by name, and tasks of the same kinds from local files."""

from abc import abstractmethod
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from permafrost.stages.bounds import MAX_STEPS, MAX_TEXTS
from permafrost.stages.corpus.candidates import CandidateColumns
from permafrost.stages.corpus.data_files import find_file, look_for
from permafrost.stages.corpus.search_files import SearchColumns, qrels_file
from permafrost.storage.quoting import quoted

Role = Literal["text", "query", "document"]
"""The role of a text in a task: a query, a document to be retrieved, or neither (`text`)."""

ROLES: tuple[Role, ...] = ("text", "query", "document")
SEARCH_ROLES: tuple[Role, ...] = ("query", "document")

Category = str
"""mteb's name of a kind of task: STS, Classification, Retrieval, ..."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HubTask(_Config):
    """A task of mteb, with data from the hub (or its local cache).

    ```yaml
    STS17: {kind: mteb, name: STS17, subsets: [en-en]}
    ```
    """

    texts_known: ClassVar[bool] = False
    """Its texts are known only after its data is downloaded."""

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
    """Only these splits; mteb's default splits if not given."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of its texts, from mteb's class of the task.

        Raises:
            InputError: mteb has no such task, or it is not about text.
        """
        from permafrost.stages.mteb_evaluation.hub import roles_of

        return roles_of(self.name)


_CUTS = (1, 3, 5, 10, 20, 100, 1000)
_SEARCH_SCORES = (
    *(
        f"{m}_at_{k}"
        for m in ("ndcg", "map", "mrr", "recall", "precision", "hit_rate")
        for k in _CUTS
    ),
    "accuracy",
    *(
        f"nauc_{m}_at_{k}_{what}"
        for m in ("ndcg", "map", "mrr", "recall", "precision")
        for k in _CUTS
        for what in ("max", "std", "diff1")
    ),
)
_CORRELATIONS = ("pearson", "spearman")
_FIELDS = {"pairs": "split", "texts": "split", "candidates": "split"}
"""The field that names a file, if it differs from what the file holds."""


class _Local(_Config):
    category: ClassVar[Category]
    default_score: ClassVar[str]
    scores: ClassVar[tuple[str, ...]]
    """Scores that the installed mteb computes for this kind of task; other names are refused at once."""
    roles: ClassVar[tuple[Role, ...]] = ("text",)
    texts_known: ClassVar[bool] = True
    """Its texts are read ahead of the evaluation."""

    kind: Literal["local"]
    path: str
    """Folder of the files: .parquet, .jsonl, .csv or .tsv. File names may be given with or without extension;
    columns that are not named may have another usual name."""
    main_score: str | None = None
    """Which of mteb's scores is the result; if not given, the main score of mteb's own tasks of this kind."""

    @field_validator("main_score")
    @classmethod
    def _score_is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in cls.scores:
            near = get_close_matches(value, cls.scores, 5, 0.4)
            listed = list(dict.fromkeys((*near, cls.default_score, *cls.scores)))
            more = f" and {len(listed) - 12} more" if len(listed) > 12 else ""
            raise ValueError(
                f"main_score is {quoted(value)}, but tasks of type {cls.category} have "
                f"{', '.join(listed[:12])}{more}"
            )
        return value

    @property
    def score(self) -> str:
        """Name of the score that is the result."""
        return self.main_score or self.default_score

    @property
    @abstractmethod
    def stems(self) -> dict[str, str]:
        """File names without extension, by what the files hold."""

    def file(self, holds: str) -> Path:
        """The file that holds this.

        Raises:
            InputError: it is missing, or there are several.
        """
        return find_file(Path(self.path), [self.stems[holds]], _FIELDS.get(holds, holds))


class _Pairs(_Local):
    split: str = "test"
    """File, without extension, of the pairs."""
    text: str = "sentence1"
    text_pair: str = "sentence2"

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"pairs": self.split}


class StsTask(_Pairs):
    """Graded pairs: rank correlation of cosines and grades."""

    category: ClassVar[Category] = "STS"
    default_score: ClassVar[str] = "cosine_spearman"
    scores: ClassVar[tuple[str, ...]] = (
        *_CORRELATIONS,
        *(
            f"{s}_{c}"
            for s in ("cosine", "manhattan", "euclidean")
            for c in ("pearson", "spearman")
        ),
    )

    type: Literal["sts"]
    label: str = "score"
    """Column with the grade."""


class PairClassificationTask(_Pairs):
    """Pairs that match (1) or do not (0): average precision of the similarity."""

    category: ClassVar[Category] = "PairClassification"
    default_score: ClassVar[str] = "max_ap"
    scores: ClassVar[tuple[str, ...]] = tuple(
        f"{s}_{m}"
        for s in ("max", "cosine", "dot", "euclidean", "manhattan", "similarity")
        for m in ("ap", "accuracy", "f1", "precision", "recall")
    )

    type: Literal["pair_classification"]
    label: str = "label"


class ClassificationTask(_Local):
    """Logistic regression on a few vectors per class, repeated several times."""

    category: ClassVar[Category] = "Classification"
    default_score: ClassVar[str] = "accuracy"
    scores: ClassVar[tuple[str, ...]] = (
        *("accuracy", "f1", "f1_weighted", "precision", "precision_weighted"),
        *("recall", "recall_weighted", "ap", "ap_weighted"),
    )

    type: Literal["classification"]
    train: str = "train"
    """File, without extension, from which training texts are drawn."""
    test: str = "test"
    text: str = "text"
    label: str = "label"
    """Column with the class: integers or strings."""
    samples_per_label: int = Field(default=8, ge=1, le=MAX_STEPS)
    """Training texts drawn per class, in mteb's way; mteb's EmotionClassification uses 16."""
    n_experiments: int = Field(default=10, ge=1, le=MAX_STEPS)
    """Number of draws; the score is the mean over them."""

    @property
    def stems(self) -> dict[str, str]:
        """Train and test."""
        return {"train": self.train, "test": self.test}


class ClusteringTask(_Local):
    """k-means with the true number of clusters, on bootstrap samples (mteb's clustering since 2024)."""

    category: ClassVar[Category] = "Clustering"
    default_score: ClassVar[str] = "v_measure"
    scores: ClassVar[tuple[str, ...]] = ("v_measure", "v_measure_std", "ami", "ami_std")

    type: Literal["clustering"]
    split: str = "test"
    text: str = "text"
    label: str = "label"
    max_documents: int | None = Field(default=None, ge=2, le=MAX_TEXTS)
    """Embed only this many texts, drawn by mteb; all if not given."""

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"texts": self.split}


class RetrievalTask(SearchColumns, _Local):
    """Queries, a corpus, and relevance judgements."""

    category: ClassVar[Category] = "Retrieval"
    default_score: ClassVar[str] = "ndcg_at_10"
    scores: ClassVar[tuple[str, ...]] = _SEARCH_SCORES
    roles: ClassVar[tuple[Role, ...]] = SEARCH_ROLES

    type: Literal["retrieval"]
    qrels: str = "qrels_test"
    """File of the judgements, e.g. `qrels/test`; queries without a relevant document are left out."""
    identical_ids: Literal["keep", "ignore"] = "keep"
    """`ignore`: a document is not a result for the query with the same id, as in mteb's ArguAna."""

    @property
    def stems(self) -> dict[str, str]:
        """Corpus, queries and judgements."""
        return {"corpus": self.corpus, "queries": self.queries, "qrels": self.qrels}

    def file(self, holds: str) -> Path:
        """The file that holds this; raises like that of other tasks."""
        return qrels_file(self.path, self.qrels) if holds == "qrels" else super().file(holds)


class RerankingTask(CandidateColumns, _Local):
    """Queries, each with its own candidates: rows of query, document and label, or of a query with the lists
    `positive` and `negative`.

    Queries without an answer are left out.
    """

    category: ClassVar[Category] = "Reranking"
    default_score: ClassVar[str] = "map_at_1000"
    scores: ClassVar[tuple[str, ...]] = _SEARCH_SCORES
    roles: ClassVar[tuple[Role, ...]] = SEARCH_ROLES

    type: Literal["reranking"]
    split: str = "test"

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"candidates": self.split}


class SummarizationTask(_Local):
    """Machine summaries compared with human ones: correlation with human grades.

    A row of `documents` may hold lists of all machine summaries and their grades, as in mteb's SummEval;
    there is no file of summaries then, and the file of documents may be called `test`.
    """

    category: ClassVar[Category] = "Summarization"
    default_score: ClassVar[str] = "cosine_spearman"
    scores: ClassVar[tuple[str, ...]] = (
        *_CORRELATIONS,
        *(f"{s}_{c}" for s in ("cosine", "dot") for c in ("pearson", "spearman")),
    )

    type: Literal["summarization"]
    documents: str = "docs"
    """File, without extension, of the documents with their human summaries."""
    summaries: str = "summaries"
    """File, without extension, of the machine summaries."""
    document_id: str = "doc_id"
    references: str = "references"
    """Column with a list of human summaries."""
    summary: str = "summary"
    relevance: str = "relevance"
    """Column with the grade of a machine summary."""

    @property
    def stems(self) -> dict[str, str]:
        """Documents and machine summaries."""
        return {"documents": self.documents, "summaries": self.summaries}

    @property
    def is_nested(self) -> bool:
        """Whether the machine summaries are in the file of documents, as there is no other."""
        is_named = self.summaries != type(self).model_fields["summaries"].default
        return not is_named and look_for(Path(self.path), [self.summaries], "summaries") is None

    def file(self, holds: str) -> Path:
        """The file that holds this; raises like that of other tasks."""
        if not self.is_nested:
            return super().file(holds)
        is_named = self.documents != type(self).model_fields["documents"].default
        names = [self.documents] if is_named else [self.documents, "test"]
        return find_file(Path(self.path), names, "documents")


LocalTask = Annotated[
    StsTask
    | PairClassificationTask
    | ClassificationTask
    | ClusteringTask
    | RetrievalTask
    | RerankingTask
    | SummarizationTask,
    Field(discriminator="type"),
]
MtebTask = Annotated[HubTask | LocalTask, Field(discriminator="kind")]
