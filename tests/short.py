"""Of many cases that are alike, those that run in `make test`; the others are deep."""

from collections.abc import Iterable

import pytest


def short(cases: Iterable[str], *kept: str) -> list[object]:
    """The cases for `parametrize`, those kept unmarked."""
    cases = list(cases)
    assert {*kept} <= {*cases}, kept
    return [case if case in kept else pytest.param(case, marks=pytest.mark.deep) for case in cases]
