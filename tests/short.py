"""Of many cases that are alike, those that run in `make test`; the others are deep."""

import hashlib
from collections.abc import Iterable, Sequence

import pytest


def short(cases: Iterable[str], *kept: str) -> list[object]:
    """The cases for `parametrize`, those kept unmarked."""
    cases = list(cases)
    assert {*kept} <= {*cases}, kept
    return [case if case in kept else pytest.param(case, marks=pytest.mark.deep) for case in cases]


def few(nodeids: Sequence[str], n: int) -> set[str]:
    """n of a test's cases, which have as many values of its parameters among them as they can.

    Args:
        nodeids: `file::test[a-b]`; the parts between dashes stand for the values.
        n: how many to take.
    """
    values = {case: set(enumerate(case.partition("[")[2].split("-"))) for case in nodeids}
    left = sorted(nodeids, key=lambda case: hashlib.sha256(case.encode()).digest())
    kept, met = set[str](), set[tuple[int, str]]()
    while left and len(kept) < n:
        best = max(left, key=lambda case: len(values[case] - met))
        left.remove(best)
        kept.add(best)
        met |= values[best]
    return kept
