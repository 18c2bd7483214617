"""Test texts that also occur in train, scores on the test examples without any, and examples of dev that are
in another split too."""

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
        `clean_test`, their score. These are None without a train split. `test_in_dev`, the share of test
        examples that are in dev with all their texts, so that what is chosen on dev is chosen on test, and
        `dev_in_train`, that of dev in train; None without these splits.
    """
    seen, dev = train_texts(examples), _keys(_sides(examples, "dev"))
    shared = {
        "test_in_dev": _share_in(_keys(sides), dev),
        "dev_in_train": _share_in(dev, _keys(_sides(examples, "train"))),
    }
    if not len(seen):
        return {"overlap": None, "n_clean_test": None, "clean_test": None, **shared}
    is_seen = np.isin(np.stack(sides), seen)
    clean = np.asarray(~is_seen.any(axis=0), np.bool_)
    return {
        "overlap": float(np.mean(~clean)),
        "n_clean_test": int(clean.sum()),
        "clean_test": measure(clean) if clean.any() else None,
        **shared,
    }


def _sides(examples: pa.Table, split: str) -> list[NDArray[np.int64]]:
    """The texts of a split's examples; of single texts the first side alone."""
    rows = examples.filter(pc.field("split") == split)
    second = rows.column("text_pair")
    names = ["text"] if second.null_count == len(second) else ["text", "text_pair"]
    return [rows.column(name).fill_null(-1).to_numpy().astype(np.int64) for name in names]


def _keys(sides: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """A number for each example, the same for examples of the same texts in the same order."""
    first, second = sides[0], sides[1] if len(sides) > 1 else np.full(len(sides[0]), -1)
    return first * (1 << 31) + second + 1


def _share_in(keys: NDArray[np.int64], others: NDArray[np.int64]) -> float | None:
    return float(np.isin(keys, others).mean()) if len(keys) and len(others) else None
