"""Splits of a dataset as `datasets` names them: one, a slice of it, or several one after the other."""

from collections.abc import Mapping
from typing import Any

from permafrost.storage.quoting import quoted


def parts_of(split: str, n_rows: Mapping[str, int]) -> list[tuple[str, range]]:
    """The rows that `train[:20]`, `train[50%:]+more` or `all` selects, by split.

    Args:
        split: as `datasets` writes it.
        n_rows: of every split.

    Raises:
        ValueError: there is no such split, or a part of one has no rows.
    """
    import datasets

    written_out = "+".join(n_rows) if split == "all" else split
    try:
        parts = datasets.ReadInstruction.from_spec(written_out).to_absolute(dict(n_rows))
    except (ValueError, AssertionError) as error:
        raise ValueError(f"its splits are {', '.join(map(quoted, n_rows))} ({error})") from None
    found = [
        (part.splitname, range(n_rows[part.splitname])[part.from_ : part.to]) for part in parts
    ]
    for name, rows in found:
        if not rows:
            raise ValueError(
                f"{quoted(split)} selects no rows of {quoted(name)}, whose number of rows is {n_rows[name]}"
            )
    return found


def prepared_part(builder: Any, split: str) -> Any:
    """A split of the dataset of a builder, or parts of it. By itself `datasets` gives other rows, or none,
    for `train[3:2]`.

    Raises:
        ValueError: there is no such split, or a part of one has no rows.
    """
    builder.download_and_prepare()
    parts_of(split, {name: info.num_examples for name, info in builder.info.splits.items()})
    return builder.as_dataset(split)
