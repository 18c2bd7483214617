"""Of all combinations of cases, some in which each case stands run in `make test`; the others are deep."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest


def diagonal(
    axes: Mapping[str, Sequence[Any]], ids: Callable[[Any], object] | None = None
) -> pytest.MarkDecorator:
    """Parametrise by the product of `axes`: names of arguments, separated by commas, to their values."""
    sizes = [len(values) for values in axes.values()]
    kept = {tuple(i % size for size in sizes) for i in range(max(sizes))}
    cases = []
    for at in product(*map(range, sizes)):
        case: list[Any] = []
        for (names, values), i in zip(axes.items(), at, strict=True):
            case += values[i] if "," in names else [values[i]]
        cases.append(pytest.param(*case, marks=() if at in kept else pytest.mark.deep))
    return pytest.mark.parametrize(",".join(axes), cases, ids=ids)
