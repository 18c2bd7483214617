"""Taking a development split out of the training examples."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from stages.corpus.columns import CarvedDev, DevFromTrain
from storage.errors import InputError


def carve_dev(examples: pa.Table, digests: Sequence[str], dev: CarvedDev) -> pa.Table:
    """Rename the split of some training examples to `dev`; the order of the rows stays.

    The distinct texts (or pairs, or first texts of pairs, as `dev` says) with the lowest seeded hash are
    chosen, so that neither the order of the rows nor their number of repetitions matters, and equal ones
    stay together.

    Raises:
        InputError: one of the two splits would be empty.
    """
    columns = (examples.column("split"), examples.column("text"), examples.column("text_pair"))
    splits, texts, pairs = (column.to_pylist() for column in columns)
    rows: dict[str, list[int]] = {}
    for i, (split, text, pair) in enumerate(zip(splits, texts, pairs, strict=True)):
        if split == "train":
            name = f"{dev.seed}:{digests[text]}"
            if isinstance(dev, DevFromTrain):
                name += f":{'' if pair is None else digests[pair]}"
            rows.setdefault(hashlib.sha256(name.encode()).hexdigest(), []).append(i)
    n_dev = round(dev.fraction * len(rows))
    if not 0 < n_dev < len(rows):
        raise InputError(
            f"dev fraction {dev.fraction} of {len(rows)} distinct training texts is {n_dev}, which "
            f"leaves {'dev' if n_dev == 0 else 'train'} empty; change the fraction or give more "
            "texts"
        )
    names = np.array(splits, dtype=object)
    names[[i for key in sorted(rows)[:n_dev] for i in rows[key]]] = "dev"
    return examples.set_column(0, "split", pa.array(names, pa.string()))
