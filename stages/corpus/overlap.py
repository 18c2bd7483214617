"""Test texts that also occur in train, scores on the test examples without any, and examples of dev that are
in another split too."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def train_texts(examples: pa.Table) -> NDArray[np.int64]:
    """Indices `[n]` of train's texts, second texts and hard negatives too, ascending; empty without train."""
    return texts_of_splits(examples, ("train",))


def texts_of_splits(examples: pa.Table, splits: Sequence[str]) -> NDArray[np.int64]:
    """As `train_texts`, of several splits."""
    found = examples.filter(pc.field("split").isin(list(splits)))
    columns = [found.column(c).drop_null() for c in ("text", "text_pair")]
    if "negatives" in found.column_names:
        columns.append(pc.list_flatten(found.column("negatives")))
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
    seen = train_texts(examples)
    clean = None
    if len(seen):
        clean = np.array(~np.isin(np.stack(sides), seen).any(axis=0), np.bool_)
    train, dev = (_keys(_sides(examples, split)) for split in ("train", "dev"))
    return _metrics(clean, {"train": train, "dev": dev, "test": _keys(sides)}, measure)


def overlap_of_cases(
    cases: Mapping[str, Sequence[NDArray[np.int64]]],
    texts: NDArray[np.int64],
    alike: NDArray[np.int64],
    measure: Callable[[NDArray[np.bool_]], float | None],
) -> dict[str, float | int | None]:
    """`overlap_metrics` of cases of any number of items, whose order says nothing.

    `overlap` goes by the texts of items; a case is in another split only with all that its items have.

    Args:
        cases: the items of each case of train, dev and test; none where there is no such split.
        texts: of each item.
        alike: a number for each item, the same for items with the same text and whatever stands beside it.
        measure: the score on the test cases of a boolean mask; None if there are too few.
    """
    numbers: dict[tuple[int, ...], int] = {}
    keys = {
        split: np.array(
            [
                numbers.setdefault(tuple(np.unique(alike[c]).tolist()), len(numbers))
                for c in of_split
            ],
            np.int64,
        )
        for split, of_split in cases.items()
    }
    clean = None
    if cases["train"]:
        seen = np.unique(texts[np.concatenate(cases["train"])])
        clean = np.array([not np.isin(texts[c], seen).any() for c in cases["test"]], np.bool_)
    return _metrics(clean, keys, measure)


def _metrics(
    clean: NDArray[np.bool_] | None,
    keys: Mapping[str, NDArray[np.int64]],
    measure: Callable[[NDArray[np.bool_]], float | None],
) -> dict[str, float | int | None]:
    shared = {
        "test_in_dev": _share_in(keys["test"], keys["dev"]),
        "dev_in_train": _share_in(keys["dev"], keys["train"]),
    }
    if clean is None:
        return {"overlap": None, "n_clean_test": None, "clean_test": None, **shared}
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
