"""Warnings are errors where our own code raises them, and only there."""

import warnings

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "permafrost",
        "permafrost.flows.cli.app",
        "permafrost.stages.scoring.score",
        "permafrost.storage.keys",
    ],
)
def test_a_warning_of_ours_is_an_error(module: str) -> None:
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn_explicit("ours", UserWarning, "ours.py", 1, module=module)


def test_a_warning_of_a_test_is_an_error() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("ours", DeprecationWarning, stacklevel=1)


@pytest.mark.parametrize("module", ["torch_geometric.typing", "flowsheet", "sklearn.metrics"])
def test_a_warning_of_a_library_is_none(module: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn_explicit("theirs", DeprecationWarning, "theirs.py", 1, module=module)
    assert [str(w.message) for w in seen] == ["theirs"]


def test_numbers_that_went_wrong_inside_a_library_are_an_error() -> None:
    with pytest.raises(RuntimeWarning, match="invalid value"):
        warnings.warn_explicit("invalid value", RuntimeWarning, "theirs.py", 1, module="numpy")
