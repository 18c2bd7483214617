"""Local pairs that match or do not, scored as mteb's PairClassification tasks are."""

from typing import Any, ClassVar, Literal

from permafrost.stages.corpus.names import BINARY
from permafrost.stages.corpus.values import texts_of, zeros_and_ones
from permafrost.stages.mteb_evaluation.columns import open_file
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.pair_task import PairTask
from permafrost.storage.errors import InputError


class PairClassificationTask(PairTask):
    """Pairs that match (1) or do not (0): average precision of the similarity."""

    mteb_category: ClassVar[str] = "PairClassification"
    default_score: ClassVar[str] = "max_ap"
    scores: ClassVar[tuple[str, ...]] = tuple(
        f"{s}_{m}"
        for s in ("max", "cosine", "dot", "euclidean", "manhattan", "similarity")
        for m in ("ap", "accuracy", "f1", "precision", "recall")
    )

    type: Literal["pair_classification"] = "pair_classification"
    label: str = "label"
    """Column with 1 for a match and 0 for none."""

    def read(self) -> LocalData:
        """Pairs with the labels 0 and 1; a row may hold lists of all three, as in mteb's older datasets.

        Raises as `LocalTask.read`.
        """
        file = open_file(self, "pairs")
        names, where = file.pair(self.text, self.text_pair), file.where
        label = file.column("label", self.label, BINARY)
        table = file.read_flat(names, [label])
        labels = zeros_and_ones(table, label, where)
        if len(set(labels)) < 2:
            raise InputError(
                f"all {len(labels)} pairs of {where} have the label {labels[0]}; average precision needs "
                f"both 0 and 1"
            )
        sides = [texts_of(table, name, where) for name in names]
        return LocalData(
            {"test": {"sentence1": sides[0], "sentence2": sides[1], "labels": labels}},
        )

    def mteb_class(self) -> Any:
        """See `LocalTask.mteb_class`."""
        from mteb.abstasks import AbsTaskPairClassification

        return AbsTaskPairClassification
