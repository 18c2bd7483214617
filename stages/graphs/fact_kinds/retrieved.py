"""Facts retrieved from a table by the words that they share with the question and the choice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow.compute as pc
from pydantic import Field
from scipy.sparse import csr_array, diags_array

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.corpus.names import TEXT, find_column
from permafrost.stages.corpus.table_files import (
    column_names,
    content_sha256,
    file_format,
    read_columns,
)
from permafrost.stages.corpus.values import checked_texts
from permafrost.stages.graphs.facts import Asked, Facts
from permafrost.stages.graphs.lemmas import is_stop_word, lemma, words_of
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import counted, quoted

_BLOCK = 512
"""Queries that are scored together: bounds the matrix of scores."""


class RetrievedFacts(Facts):
    """The `top_k` facts of a table with the best score; fewer where fewer share a word with the query.

    Words count as lemmas, without stop words. Facts with equal scores are in the order of the table.
    """

    kind: Literal["retrieved"] = "retrieved"
    path: str
    """Table with a row per fact."""
    text: str = "fact"
    """Column; if not given, one with another usual name: text, sentence."""
    top_k: int = Field(default=3, ge=1, le=MAX_STEPS)
    """Facts for each query, at most."""
    method: Literal["bm25", "tfidf"] = "bm25"
    """`bm25`: Okapi's, with the weights k1 and b; `tfidf`: cosine of scikit-learn's vectors."""
    k1: float = Field(default=1.2, ge=0, allow_inf_nan=False)
    """Of BM25: how soon another occurrence of a word adds nothing."""
    b: float = Field(default=0.75, ge=0, le=1)
    """Of BM25: how much long facts count less."""
    query: Literal["question_and_choice", "question"] = "question_and_choice"
    """What is searched for. With `question`, the choices of a question have the same facts."""

    def facts(self) -> dict[str, Any]:
        """A digest of the file instead of its name, and everything that affects what is found."""
        path = Path(self.path)
        file = {"format": file_format(path), "sha256": content_sha256(path)}
        return {**self.model_dump(exclude={"path"}), "file": file}

    def choose(self, asked: Sequence[Asked]) -> list[tuple[str, ...]]:
        """Search the table for every query.

        Raises:
            InputError: the table cannot be read, or no query shares a word with a fact.
        """
        # Half a second, for this kind alone.
        from sklearn.feature_extraction.text import CountVectorizer

        facts = self._read()
        if not any(map(_content_words, facts)):
            raise InputError(
                f"no fact in column {quoted(self.text)} of {self.path} has a word that is no stop word; name "
                "the column with the facts"
            )
        both = self.query == "question_and_choice"
        queries = [f"{one.question} {one.choice}" if both else one.question for one in asked]
        numbers = {query: i for i, query in enumerate(dict.fromkeys(queries))}
        counter = cast(Any, CountVectorizer)(analyzer=_content_words, dtype=np.float64)
        counts = counter.fit_transform(facts)
        weights, of_queries = self._weighted(counts, counter.transform(list(numbers)))
        found: list[tuple[str, ...]] = []
        for at in range(0, len(numbers), _BLOCK):
            scores = (of_queries[at : at + _BLOCK] @ weights.T).toarray()
            best = np.argsort(-scores, axis=1, kind="stable")[:, : self.top_k]
            found += [
                tuple(facts[i] for i in row.tolist() if scores[query, i] > 0)
                for query, row in enumerate(best)
            ]
        if asked and not any(found):
            questions = list(dict.fromkeys(one.question for one in asked))
            raise InputError(
                f"no fact of {self.path} ({counted(len(facts), 'fact')}, the first: {quoted(facts[0])}) "
                f"shares a word with any question{' or choice' if both else ''} "
                f"({counted(len(questions), 'question')}, the first: {quoted(questions[0])}); give both in "
                "one language, with spaces between words, or leave with_facts out; words are compared by "
                "their English lemmas, and words of English grammar do not count"
            )
        return [found[numbers[query]] for query in queries]

    def _read(self) -> list[str]:
        """The facts, each once, without the spaces around them."""
        path = Path(self.path)
        usual = ("fact", *TEXT)
        name = find_column("text", self.text, usual, column_names(path), self.path)
        column = read_columns(path, [name], []).column(name)
        texts = pc.utf8_trim_whitespace(checked_texts(column, name, self.path))
        return list(dict.fromkeys(texts.to_pylist()))

    def _weighted(self, counts: Any, queries: Any) -> tuple[Any, Any]:
        """Sparse matrices of facts and of queries whose products are the scores."""
        if self.method == "tfidf":
            from sklearn.feature_extraction.text import TfidfTransformer

            transformer = TfidfTransformer()
            return transformer.fit_transform(counts), transformer.transform(queries)
        n_facts, n_words = counts.shape
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        having = np.bincount(counts.indices, minlength=n_words)
        # Lucene's form, which no word's rarity makes negative.
        rarity = np.log(1 + (n_facts - having + 0.5) / (having + 0.5))
        norm = self.k1 * (1 - self.b + self.b * lengths / max(lengths.mean(), 1e-12))
        saturated = csr_array(counts)
        rows = np.repeat(np.arange(n_facts), np.diff(saturated.indptr))
        saturated.data = saturated.data * (self.k1 + 1) / (saturated.data + norm[rows])
        return saturated @ diags_array(rarity), queries


def _content_words(text: str) -> list[str]:
    return [lemma(word) for word in words_of(text) if not is_stop_word(word)]
