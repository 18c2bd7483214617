"""Local graded pairs, scored as mteb's STS tasks are."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from permafrost.stages.corpus.names import GRADE
from permafrost.stages.corpus.values import numbers_of, texts_of
from permafrost.stages.mteb_evaluation.columns import open_file
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.pair_task import PairTask
from permafrost.storage.errors import InputError


class StsTask(PairTask):
    """Graded pairs: rank correlation of cosines and grades."""

    mteb_category: ClassVar[str] = "STS"
    default_score: ClassVar[str] = "cosine_spearman"
    scores: ClassVar[tuple[str, ...]] = (
        *("pearson", "spearman"),
        *(
            f"{s}_{c}"
            for s in ("cosine", "manhattan", "euclidean")
            for c in ("pearson", "spearman")
        ),
    )

    type: Literal["sts"] = "sts"
    label: str | None = None
    """Column with the grade; if not given, `label` or another usual name."""

    def read(self) -> LocalData:
        """Graded pairs, not all of the same grade; raises as `LocalTask.read`."""
        file = open_file(self, "pairs")
        names, where = file.pair(self.text, self.text_pair), file.where
        # mteb's own name first, where a file has several.
        usual = GRADE if GRADE[0] in file.names else ("label", *GRADE)
        label = file.column("label", self.label or usual[0], usual)
        table = file.read(names, labels=[label])
        grades = numbers_of(table, label, where)
        if len(set(grades)) < 2:
            raise InputError(
                f"all {len(grades)} pairs of {where} have the grade {grades[0]:g}, so there is nothing to "
                f"correlate; name another column as label"
            )
        sides = [texts_of(table, name, where) for name in names]
        return LocalData(
            {"test": {"sentence1": sides[0], "sentence2": sides[1], "score": grades}},
        )

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskSTS

        return AbsTaskSTS

    def settings(self) -> Mapping[str, Any]:
        """Grades are not rescaled, as no correlation depends on their scale."""
        return {"min_score": 0, "max_score": 1}
