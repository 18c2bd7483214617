"""Test texts that also occur in train, and scores on the test examples without any."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def train_texts(examples: pa.Table) -> NDArray[np.int64]:
    """Indices `[n]` of train's texts, second texts and hard negatives too, ascending; empty without train."""
    train = examples.filter(pc.field("split") == "train")
    columns = [train.column(c).drop_null() for c in ("text", "text_pair")]
    if "negatives" in train.column_names:
        columns.append(pc.list_flatten(train.column("negatives")))
    return np.unique(np.concatenate([c.to_numpy() for c in columns])).astype(np.int64)


def overlap_metrics(
    examples: pa.Table,
    sides: Sequence[NDArray[np.int64]],
    measure: Callable[[NDArray[np.bool_]], float | None],
) -> dict[str, float | int | None]:
    """How much of test overlaps with train, and the score on the rest.

    Args:
        examples: of a corpus, every split.
        sides: texts of the test examples, `[n]` each.
        measure: the score on the test examples of a boolean mask; None if there are too few.

    Returns:
        `overlap`, the share of test examples with a text that train has as a first text, a second one or a
        hard negative, whether or not a method reads these; `n_clean_test`, the number of the others;
        `clean_test`, their score. All None without a train split.
    """
    seen = train_texts(examples)
    if not len(seen):
        return {"overlap": None, "n_clean_test": None, "clean_test": None}
    is_seen = np.isin(np.stack(sides), seen)
    clean = np.asarray(~is_seen.any(axis=0), np.bool_)
    return {
        "overlap": float(np.mean(~clean)),
        "n_clean_test": int(clean.sum()),
        "clean_test": measure(clean) if clean.any() else None,
    }
