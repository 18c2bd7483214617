"""Local texts with classes, scored as mteb's Clustering tasks are."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.corpus.values import texts_of
from permafrost.stages.mteb_evaluation.columns import classes_of, open_labelled
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask, Role
from permafrost.stages.mteb_evaluation.texts import sampled
from permafrost.storage.errors import InputError


class ClusteringTask(LocalTask):
    """k-means with the true number of clusters, on bootstrap samples (mteb's clustering since 2024)."""

    mteb_category: ClassVar[str] = "Clustering"
    default_score: ClassVar[str] = "v_measure"
    scores: ClassVar[tuple[str, ...]] = ("v_measure", "v_measure_std", "ami", "ami_std")

    type: Literal["clustering"] = "clustering"
    split: str = "test"
    """File, without extension."""
    text: str = "text"
    """Column with the text."""
    label: str = "label"
    """Column with the class."""
    max_documents: int | None = Field(default=None, ge=2, le=MAX_TEXTS)
    """Embed only this many texts, drawn by mteb; all if not given."""

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"texts": self.split}

    def read(self) -> LocalData:
        """Texts with their classes, as names; rows with lists of both are concatenated, as in mteb.

        Raises as `LocalTask.read`.
        """
        table, text, label, where = open_labelled(self, "texts", self.text, self.label)
        labels = classes_of(table, label, where)
        if len(set(labels)) < 2:
            raise InputError(
                f"all {len(labels)} rows of {where} have the same class, so there is nothing to cluster; "
                f"name another column as label"
            )
        # mteb reads -1 as "no label at this level".
        return LocalData(
            {
                "test": {
                    "sentences": texts_of(table, text, where),
                    "labels": list(map(str, labels)),
                }
            }
        )

    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """The texts that mteb draws."""
        return {"text": sampled(data.tables["test"]["sentences"], self.max_documents)}

    def n_scored(self, data: LocalData) -> int:
        """The texts that mteb draws."""
        return len(self.asked_texts(data)["text"])

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskClustering

        return AbsTaskClustering

    def settings(self) -> Mapping[str, Any]:
        """By default mteb embeds 4 % of the texts."""
        return {
            "max_fraction_of_documents_to_embed": None,
            "max_document_to_embed": self.max_documents,
        }
