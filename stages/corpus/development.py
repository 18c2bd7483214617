"""Taking a development split out of the training examples."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.columns import CarvedDev, DevFromTrain
from permafrost.storage.errors import InputError


def carve_dev(
    examples: pa.Table, digests: Sequence[str], dev: CarvedDev, label_names: Sequence[str]
) -> pa.Table:
    """Rename the split of some training examples to `dev`; the order of the rows stays.

    The distinct texts (or pairs, or first texts of pairs, as `dev` says) with the lowest seeded hash are
    chosen, so that neither the order of the rows nor their number of repetitions matters, and equal ones
    stay together. The last one of a class stays in train, which needs it more.

    Args:
        examples: as of a corpus.
        digests: of its texts.
        dev: the share, and the seed.
        label_names: of the classes; none where labels are no classes.

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
    chosen = _spared(rows, examples, label_names, n_dev)
    if not 0 < n_dev < len(rows):
        raise InputError(
            f"dev fraction {dev.fraction} of {len(rows)} distinct training texts is {n_dev}, which "
            f"leaves {'dev' if n_dev == 0 else 'train'} empty; change the fraction or give more "
            "texts"
        )
    if not chosen:
        raise InputError(
            f"none of {len(rows)} distinct training texts can become dev, as each is the last one of its "
            "class; give more texts of each class"
        )
    names = np.array(splits, dtype=object)
    for key in chosen:
        names[rows[key]] = "dev"
    return examples.set_column(0, "split", pa.array(names, pa.string()))


def _spared(
    rows: Mapping[str, Sequence[int]], examples: pa.Table, label_names: Sequence[str], n_dev: int
) -> list[str]:
    """The `n_dev` lowest keys without which every class is still in train; fewer if there are not so many."""
    if not label_names:
        return sorted(rows)[:n_dev]
    labels = examples.column("label").to_pylist()
    left = Counter(labels[i] for found in rows.values() for i in found)
    chosen: list[str] = []
    for key in sorted(rows):
        taken = Counter(labels[i] for i in rows[key])
        if len(chosen) < n_dev and all(left[label] > n for label, n in taken.items()):
            chosen.append(key)
            left -= taken
    return chosen
