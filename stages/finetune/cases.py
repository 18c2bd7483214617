"""What is asked of a model of texts with graphs: the cases of a corpus, by split."""

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.item_graphs import contents, graphs_of
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.text_graphs import TextGraphs
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged, offsets_of

SPLITS = ("dev", "test")
"""The scored splits."""


@dataclass(frozen=True)
class Cases:
    """What is asked: items of each case, and its label."""

    items: Ragged
    """int64."""
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64]) -> "Cases":
        """The cases at these indices."""
        return Cases(self.items.take(indices), self.labels[indices])


def cases_of(corpus: GraphCorpus, split: str) -> Cases:
    """The cases of a split, in their order.

    Raises:
        InputError: there are none.
    """
    column = corpus.cases.column("split")
    rows = corpus.cases.filter(pc.equal(column, split))
    if not rows.num_rows:
        have = ", ".join(pc.unique(column).to_pylist()) or "none"
        raise InputError(
            f"the corpus has no {split} cases (its splits: {have}); a model is trained on train, chosen "
            f"on dev and scored on test. Give cases of {split}"
        )
    items = rows.column("items").combine_chunks()
    counts = pc.list_value_length(items).to_numpy().astype(np.int64)
    flat = pc.list_flatten(items).to_numpy().astype(np.int64)
    return Cases(Ragged(flat, offsets_of(counts)), rows.column("label").to_numpy())


def relevant_grades(corpus: GraphCorpus, split: str) -> dict[int, dict[int, int]]:
    """The grade of every judged document of each query that has a relevant one, by their items."""
    judged = corpus.judgements.filter(pc.equal(corpus.judgements.column("split"), split))
    columns = (judged.column(name).to_numpy() for name in ("query", "document", "grade"))
    grades: dict[int, dict[int, int]] = {}
    for query, document, grade in zip(*(c.tolist() for c in columns), strict=True):
        grades.setdefault(query, {})[document] = grade
    return {query: own for query, own in grades.items() if max(own.values()) > 0}


def items_by_split(corpus: GraphCorpus) -> dict[str, list[NDArray[np.int64]]]:
    """The items of each case of train, dev and test, in their order; of a search its queries with a relevant
    document, as splits share documents by design."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for split in ("train", *SPLITS):
        rows = corpus.cases.filter(pc.equal(corpus.cases.column("split"), split))
        items = rows.column("items").to_pylist()
        if corpus.documents:
            is_relevant = rows.column("label").to_numpy() > 0
            # Judgements of train need not be kept, and dev and test are scored by theirs.
            asked = {
                query: None for (query, _), is_one in zip(items, is_relevant, strict=True) if is_one
            }
            items = [[q] for q in (asked if split == "train" else relevant_grades(corpus, split))]
        found[split] = [np.array(own, np.int64) for own in items]
    return found


def texts_of_items(corpus: GraphCorpus) -> NDArray[np.int64]:
    """The text of each item `[n_items]`."""
    return corpus.items.column("text").to_numpy().astype(np.int64)


def alike(corpus: GraphCorpus) -> NDArray[np.int64]:
    """A number for each item `[n_items]`, equal for those with the same text and equal graphs."""
    graphs = graphs_of(corpus)
    content = np.where(graphs < 0, -1, np.append(contents(corpus), -1)[graphs])
    pairs = np.stack([texts_of_items(corpus), content], axis=1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def require_cases(config: FinetuneConfig, corpus: GraphCorpus) -> None:
    """Raises: InputError: the loss is of another kind of task or number of classes, the model reads the
    relevance of nodes and none was scored, graphs cannot be shuffled, a split is missing (of train only if
    something is trained), the batches are too small for it, or `dev_documents` are given where none are
    searched."""
    if corpus.task not in config.loss.task_kinds:
        raise InputError(
            f"the loss {quoted(config.loss.kind)} is made for {', '.join(config.loss.task_kinds)}, and the "
            f"corpus is of kind {corpus.task}; use a loss for this kind"
        )
    wanted, names = config.loss.n_classes, corpus.label_names
    if corpus.task == "classification" and wanted not in (None, len(names)):
        raise InputError(
            f"the loss {quoted(config.loss.kind)} is made for {wanted} classes, and the corpus has "
            f"{len(names)} ({', '.join(map(quoted, names[:10]))}); give it "
            f"{wanted} classes, or make each class a choice of a corpus with task: multiple_choice"
        )
    if config.model.reads_relevance and not _is_scored(corpus.graphs):
        raise InputError(
            "the graph encoder reads the relevance of nodes (encoder.relevance is score), but the corpus has "
            "none: its nodes are not scored; give the task a node_relevance (cosine, likelihood), or its "
            "table of nodes a column 'relevance', or set encoder.relevance: none"
        )
    if config.graphs == "shuffled":
        graphs_of(corpus, config.seed, config.model.query_node)
    if config.optim.dev_documents is not None and config.metric != "ndcg_at_10":
        raise InputError(
            f"optim.dev_documents is {config.optim.dev_documents}, but the corpus is of kind {corpus.task}, "
            "in which nothing is searched; leave it out, or name the method's tasks"
        )
    train = None if config.trains_nothing else cases_of(corpus, "train")
    if config.metric == "accuracy":
        for split in SPLITS:
            cases_of(corpus, split)
    else:
        train = None if train is None else train.take(np.flatnonzero(train.labels > 0))
        _require_searches(corpus, train)
    if train is not None:
        _require_batches(config, len(train))


def _is_scored(graphs: TextGraphs) -> bool:
    """Whether a model can learn anything from the scores of nodes: not if all are 0."""
    has_nodes = len(graphs.node_label) > len(graphs)
    return graphs.are_scored and (bool(graphs.node_relevance.any()) or not has_nodes)


def _require_searches(corpus: GraphCorpus, train: Cases | None) -> None:
    """Each split has a relevant document, and dev and test are judged; `train` holds the cases of train with
    one, or is None where nothing is trained. Sources need not keep judgements of train."""
    judged = pc.unique(corpus.judgements.column("split")).to_pylist()
    if missing := [split for split in SPLITS if split not in judged]:
        raise InputError(
            f"the corpus has no judgements of {' and '.join(missing)} (of {', '.join(judged) or 'none'}), by "
            "which a retrieval is chosen on dev and scored on test; give some"
        )
    has_relevant = {split: bool(relevant_grades(corpus, split)) for split in SPLITS}
    if train is not None:
        has_relevant = {"train": len(train) > 0, **has_relevant}
    if missing := [split for split, has in has_relevant.items() if not has]:
        found = [split for split, has in has_relevant.items() if has]
        *needed, last = has_relevant
        raise InputError(
            f"no document is relevant to a query of {' and '.join(missing)}: grades above 0 are of "
            f"{' and '.join(found) or 'no split'} alone; give a relevant document in each of "
            f"{', '.join(needed)} and {last}"
        )


def _require_batches(config: FinetuneConfig, n_train: int) -> None:
    least = config.loss.least_batch
    if min(n_train, config.optim.batch_size) < least:
        raise InputError(
            f"the loss {quoted(config.loss.kind)} needs batches of at least {least} cases, but there are "
            f"{n_train} in train and optim.batch_size is {config.optim.batch_size}"
        )
