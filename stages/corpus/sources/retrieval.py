"""Pairs of a query and a relevant document, from queries, documents and judgements in BEIR's layout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from permafrost.stages.corpus.columns import Unlabelled
from permafrost.stages.corpus.data_files import look_for
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.search_files import (
    QRELS,
    Judgeable,
    Judgement,
    SearchColumns,
    document_text,
    judgements_of,
    qrels_file,
    qrels_names,
    read_documents,
    read_judgements,
    read_queries,
)
from permafrost.stages.corpus.source import CorpusSource, test_part
from permafrost.stages.corpus.splits import (
    DevAsGiven,
    DevOfQueries,
    TestAsGiven,
    TestOfQueries,
    check_splits,
)
from permafrost.stages.corpus.table_files import file_identity
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_USUAL = {"train": ("train",), "dev": ("dev", "validation", "valid"), "test": ("test",)}
"""Usual names of the splits' judgements."""


class RetrievalCorpus(SearchColumns, CorpusSource):
    """A folder with documents, queries and judgements, as in BEIR: one pair per relevant document.

    ```yaml
    kind: retrieval
    path: data/scifact
    dev: {kind: from_train_queries, fraction: 0.1}
    ```

    Files and columns have the same names as in a local evaluation task of type `retrieval`, and a document's
    text is built in the same way, so that both find it in the same store. Documents without a relevant
    judgement are left out. Splits divide queries: a document may be in several.
    """

    kind: Literal["retrieval"] = "retrieval"
    qrels: dict[str, str] | None = Field(default=None, min_length=1)
    """The file of judgements of each split, named like `queries`; if not given, those of train, dev and test
    that the folder has."""
    dev: DevOfQueries = DevAsGiven()
    """Where the development split comes from."""
    test: TestOfQueries = TestAsGiven()
    """Where the test split comes from."""

    def columns(self) -> Unlabelled:
        """Pairs without labels."""
        return Unlabelled(text="query", text_pair="document")

    def held_out(self) -> tuple[DevOfQueries, TestOfQueries]:
        """As configured."""
        return self.dev, self.test

    @model_validator(mode="after")
    def _splits_go_with_dev(self) -> "RetrievalCorpus":
        if self.qrels is not None:
            check_splits(self.columns(), self.dev, self.test, list(self.qrels))
        return self

    def judged(self) -> dict[str, Path]:
        """The file of judgements of each split.

        Raises:
            InputError: a file is missing, or the splits do not fit `dev` and `test`.
        """
        if self.qrels is not None:
            return {split: qrels_file(self.path, name) for split, name in self.qrels.items()}
        files: dict[str, Path] = {}
        for split, names in _USUAL.items():
            for name in (n for given in names for n in qrels_names(f"qrels_{given}")):
                if split not in files and (
                    path := look_for(Path(self.path), [name], "qrels", QRELS)
                ):
                    files[split] = path
        if not files:
            qrels_file(self.path, "qrels_train")  # raises an error that lists the folder
        try:
            check_splits(self.columns(), self.dev, self.test, list(files))
        except ValueError as error:
            raise InputError(
                f"the folder {self.path} has judgements of {', '.join(files)}: {error}, or name those "
                "that are meant in 'qrels'"
            ) from error
        return files

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        return {
            **self.model_dump(mode="json", exclude={"path"}),
            "corpus": file_identity(self.corpus_file),
            "queries": file_identity(self.queries_file),
            "qrels": {split: file_identity(path) for split, path in self.judged().items()},
        }

    def tested_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """SHA-256 of the judgements of test, or of train where test is taken from those."""
        return test_part({split: file["sha256"] for split, file in facts["qrels"].items()})

    def rows(self) -> list[SplitRows]:
        """The pairs of every split, in the order of its judgements.

        Raises:
            InputError: a file or column is missing, there are no rows, an id occurs twice, a judgement names
                an unknown query or document, no document is relevant, or a relevant one or its query is
                blank.
        """
        titled, documents_where = read_documents(self)
        documents = {key: document_text(*both) for key, both in titled.items()}
        queries, queries_where = read_queries(self)
        judgeable = Judgeable(queries, queries_where), Judgeable(documents, documents_where)
        rows: list[SplitRows] = []
        for split, path in self.judged().items():
            where = str(path)
            table, names = read_judgements(self, path)
            relevant = [j for j in judgements_of(table, names, where, *judgeable) if j.grade > 0]
            sides = (
                [_filled(queries, "query", j.query, j, where, queries_where) for j in relevant],
                [
                    _filled(documents, "document", j.document, j, where, documents_where)
                    for j in relevant
                ],
            )
            text, text_pair = (pa.chunked_array([side], pa.large_string()) for side in sides)
            rows.append(
                SplitRows(
                    split=split,
                    where=f"the pairs of {where}",
                    text=text,
                    text_pair=text_pair,
                    label=None,
                    class_names=None,
                )
            )
        return rows


def _filled(
    texts: Mapping[str, str], what: str, key: str, judgement: Judgement, where: str, source: str
) -> str:
    """The text with this id; not blank."""
    if not (text := texts[key]).strip():
        raise InputError(
            f"row {judgement.row} of {where} calls document {quoted(judgement.document)} relevant for query "
            f"{quoted(judgement.query)}, but the {what} {quoted(key)} in {source} is blank; remove the row "
            f"or fill the {what}"
        )
    return text
