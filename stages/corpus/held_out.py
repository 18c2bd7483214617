"""Taking a test split out of the training examples, so that no text is on both sides."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa

from permafrost.stages.corpus.columns import CarvedTest, TaskKind, TestFromTrainQueries
from permafrost.storage.errors import InputError

N_BINS = 10
"""Strata of graded pairs, equally full."""


@dataclass(frozen=True)
class _Group:
    """Training examples that must stay together."""

    rows: tuple[int, ...]
    """Of the examples."""
    order: str
    """A seeded hash of its texts."""
    label: float
    """The most frequent class, or the mean grade; 0 without labels."""


def carve_test(
    examples: pa.Table, digests: Sequence[str], test: CarvedTest, task: TaskKind
) -> pa.Table:
    """Rename the split of some training examples to `test`; the order of the rows stays.

    Examples that share a text (a first text, for `from_train_queries`) are one group. Every class, or every
    tenth of the graded pairs by grade, gives its share, by largest remainder; within one, groups with a low
    seeded hash come first, so that the order of the rows plays no role. A group that is larger than what is
    left to take stays in train, and so does the last group of a class; test may then be smaller than its
    share.

    Args:
        examples: as of a corpus.
        digests: of its texts.
        test: the share, and the seed.
        task: of the corpus.

    Raises:
        InputError: the test split would be empty.
    """
    groups = _groups(examples, digests, test, task)
    strata = _strata(groups, task)
    n_rows = sum(len(g.rows) for g in groups)
    chosen: list[int] = []
    # Exact, so that 0.1 of 30 is 3 on every machine.
    share = Fraction(str(test.fraction))
    for stratum, n_wanted in zip(strata, _quotas(strata, share), strict=True):
        for group in sorted(stratum, key=lambda g: g.order)[: len(stratum) - 1]:
            if len(group.rows) <= n_wanted:
                chosen += group.rows
                n_wanted -= len(group.rows)
    if not chosen:
        raise InputError(
            f"test fraction {test.fraction} of {n_rows} training examples leaves test empty: no text is on "
            f"both sides, so they come in {len(groups)} groups of {min(len(g.rows) for g in groups)} to "
            f"{max(len(g.rows) for g in groups)}, and the last one of each class stays in train; raise the "
            "fraction, give more texts, name a file for test, or split pairs by their first texts alone "
            "(kind: from_train_queries)"
        )
    names = np.array(examples.column("split").to_pylist(), dtype=object)
    names[chosen] = "test"
    return examples.set_column(0, "split", pa.array(names, pa.string()))


def _groups(
    examples: pa.Table, digests: Sequence[str], test: CarvedTest, task: TaskKind
) -> list[_Group]:
    # Imported here: only a corpus that is split so needs it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    train = np.flatnonzero(np.array(examples.column("split").to_pylist(), dtype=object) == "train")
    first = examples.column("text").to_numpy()[train].astype(np.int64)
    pairs = examples.column("text_pair").take(pa.array(train))
    has_pairs = not pairs.null_count and not isinstance(test, TestFromTrainQueries)
    second = pairs.to_numpy().astype(np.int64) if has_pairs else first
    links = coo_array((np.ones(len(train)), (first, second)), shape=(len(digests), len(digests)))
    of_text = connected_components(links, directed=False)[1]
    lowest: dict[int, str] = {}
    for text in map(int, np.unique(np.concatenate([first, second]))):
        name = of_text[text]
        lowest[name] = min(digests[text], lowest.get(name, digests[text]))
    members: dict[int, list[int]] = {}
    for at, text in enumerate(first.tolist()):
        members.setdefault(of_text[text], []).append(at)
    labels = examples.column("label").take(pa.array(train)).to_pylist()
    return [
        _Group(
            tuple(int(train[at]) for at in found),
            hashlib.sha256(f"test:{test.seed}:{lowest[name]}".encode()).hexdigest(),
            _label([labels[at] for at in found], task),
        )
        for name, found in members.items()
    ]


def _label(labels: Sequence[float | None], task: TaskKind) -> float:
    known = sorted(label for label in labels if label is not None)
    if not known:
        return 0.0
    if task == "similarity":
        return float(np.mean(known))
    return Counter(known).most_common(1)[0][0]  # of equally frequent ones the lowest


def _strata(groups: Sequence[_Group], task: TaskKind) -> list[list[_Group]]:
    if task == "similarity":
        graded = sorted(groups, key=lambda g: (g.label, g.order))
        bounds = np.linspace(0, len(graded), N_BINS + 1).round().astype(int).tolist()
        bins = [graded[a:b] for a, b in pairwise(bounds)]
        # A bin of one could give nothing, as one group of each stays.
        return bins if len(graded) >= 2 * N_BINS else [graded]
    found: dict[float, list[_Group]] = {}
    for group in groups:
        found.setdefault(group.label, []).append(group)
    return [found[label] for label in sorted(found)]


def _quotas(strata: Sequence[Sequence[_Group]], share: Fraction) -> list[int]:
    """Examples that every stratum gives, at most; a remainder that it cannot give goes to the next."""
    sizes = [sum(len(g.rows) for g in stratum) for stratum in strata]
    exact = [share * size for size in sizes]
    quotas = [int(e) if len(s) > 1 else 0 for e, s in zip(exact, strata, strict=True)]
    missing = round(share * sum(sizes)) - sum(quotas)
    able = [i for i, stratum in enumerate(strata) if len(stratum) > 1]
    for i in sorted(able, key=lambda i: (quotas[i] - exact[i], -sizes[i], i))[: max(missing, 0)]:
        quotas[i] += 1
    return quotas
