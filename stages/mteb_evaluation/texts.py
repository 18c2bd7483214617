"""The texts that the evaluation of a local task will embed, so that they can be extracted ahead of it."""

import random
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.corpus import EXAMPLES, Corpus
from permafrost.stages.corpus.search_files import document_text
from permafrost.stages.mteb_evaluation.local_data import Columns, LocalData
from permafrost.stages.mteb_evaluation.reading import read_local
from permafrost.stages.mteb_evaluation.tasks import (
    ClassificationTask,
    ClusteringTask,
    LocalTask,
    Role,
)
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest

SEED = 42
"""Seed of mteb's tasks."""


def task_corpus(config: LocalTask, role: Role) -> Corpus:
    """The texts that a task embeds in one role, as a corpus of kind `unlabelled`, without blank ones.

    Raises:
        InputError: all texts are blank; see also `read_local`.
    """
    asked = dict.fromkeys(asked_texts(config, read_local(config))[role])
    corpus = texts_corpus(asked, role)
    if not corpus.texts:
        raise InputError(
            f"all {len(asked)} texts of the task in {config.path} in the role {role} are blank; name "
            f"another column"
        )
    return corpus


def texts_corpus(asked: Iterable[str], role: Role) -> Corpus:
    """Unique texts as a corpus of kind `unlabelled` whose only split is their role, without blank ones."""
    texts = tuple(text for text in asked if text.strip())
    columns = {"split": [role] * len(texts), "text": list(range(len(texts)))}
    empty = [None] * len(texts)
    examples = pa.table({n: columns.get(n, empty) for n in EXAMPLES.names}, schema=EXAMPLES)
    return Corpus(texts, examples, "unlabelled", (), tuple(map(text_digest, texts)))


def asked_texts(config: LocalTask, data: LocalData) -> dict[Role, list[str]]:
    """Texts by role, as mteb passes them to an encoder. An evaluation fails if it needs a text that is
    missing here; superfluous texts only cost time."""
    tables = data.tables
    if "queries" in tables:
        return {"query": tables["queries"]["text"], "document": documents(tables["corpus"])}
    test = tables["test"]
    if isinstance(config, ClassificationTask):
        drawn = drawn_rows(tables["train"]["label"], config.samples_per_label, config.n_experiments)
        return {"text": [*(tables["train"]["text"][i] for i in drawn), *test["text"]]}
    if isinstance(config, ClusteringTask):
        return {"text": _sampled(test["sentences"], config.max_documents)}
    if "machine_summaries" in test:
        both = (*test["human_summaries"], *test["machine_summaries"])
        return {"text": [summary for summaries in both for summary in summaries]}
    return {"text": [*test["sentence1"], *test["sentence2"]]}


def documents(corpus: Columns) -> list[str]:
    """Title and text joined by a space, as in mteb."""
    titles: Sequence[str] = corpus.get("title", [""] * len(corpus["text"]))
    return [document_text(*both) for both in zip(titles, corpus["text"], strict=True)]


def drawn_rows(labels: Sequence[int | str], per_label: int, n_draws: int) -> list[int]:
    """Training rows in any of mteb's draws of `per_label` rows per class, ascending.

    mteb shuffles the rows of the previous draw with a generator that is reseeded every time.
    """
    order, drawn = list(range(len(labels))), set[int]()
    for _ in range(n_draws):
        np.random.RandomState(SEED).shuffle(order)
        counts: dict[int | str, int] = {}
        for row in order:
            if counts.setdefault(labels[row], 0) < per_label:
                counts[labels[row]] += 1
                drawn.add(row)
    return sorted(drawn)


def _sampled(texts: list[str], limit: int | None) -> list[str]:
    if limit is None:
        return texts
    return [texts[i] for i in random.Random(SEED).sample(range(len(texts)), min(limit, len(texts)))]
