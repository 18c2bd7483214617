"""What local tasks of pairs share: their fields, and the columns of the two texts."""

from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask, Role


class PairTask(LocalTask):
    """Rows of two texts and a label."""

    split: str = "test"
    """File, without extension, of the pairs."""
    text: str | None = None
    """Column with the first text; if not given, `text` or another usual name."""
    text_pair: str | None = None
    """Column with the second text; if not given, `text_pair` or another usual name."""

    @property
    def stems(self) -> dict[str, str]:
        """One file."""
        return {"pairs": self.split}

    def asked_texts(self, data: LocalData) -> dict[Role, list[str]]:
        """Both sides of every pair."""
        test = data.tables["test"]
        return {"text": [*test["sentence1"], *test["sentence2"]]}
