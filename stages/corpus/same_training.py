"""Whether two corpora differ in nothing but what a fit is scored on."""

import pyarrow as pa
import pyarrow.compute as pc

from permafrost.stages.corpus.corpus import Corpus
from permafrost.storage.errors import InputError


def require_same_training(trained: Corpus, tested: Corpus) -> None:
    """Check that what was trained and chosen on one corpus is no other than on the second.

    Args:
        trained: the corpus of a fit.
        tested: one with another test set, whose dev is scored too.

    Raises:
        InputError: kinds, classes, or the examples of train or dev differ.
    """
    if (trained.task, trained.label_names) != (tested.task, tested.label_names):
        raise InputError(
            f"the fit is of a task of kind {trained.task} with the classes "
            f"{', '.join(trained.label_names)}, the further test set of one of kind {tested.task} with "
            f"{', '.join(tested.label_names)}; give both the same"
        )
    for split in ("train", "dev"):
        theirs, own = (_examples(corpus, split) for corpus in (trained, tested))
        if not theirs.equals(own):
            raise InputError(
                f"a further test set has other {split} examples ({own.num_rows:,}) than the task on which "
                f"the fit is trained ({theirs.num_rows:,}); give both the same {split}, in the same order, "
                "or leave 'test_sets' out"
            )


def _examples(corpus: Corpus, split: str) -> pa.Table:
    """Digests of the texts, and labels; no rows without the split."""
    rows = corpus.examples.filter(pc.equal(corpus.examples.column("split"), split))
    digests = pa.array(list(corpus.digests), pa.string())
    texts = {c: digests.take(rows.column(c).combine_chunks()) for c in ("text", "text_pair")}
    return pa.table({**texts, "label": rows.column("label")}).combine_chunks()
