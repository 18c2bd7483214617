"""Claims that two things are best at the same setting."""

from pathlib import Path

import pytest

from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.claim_kinds import SameBest
from permafrost.stages.report.claims import claim_results, claims_summary
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.curve_claims import NO_CURVES
from permafrost.stages.report.notes import annotated
from permafrost.stages.report.tables import tabulate
from tests.stages.report.claimed_cells import REPORT, cell


def at_settings(folder: Path, **scores: tuple[float, float, float]) -> list[Cell]:
    """Cells of a method at three settings by task: `probe=(0.7, 0.9, 0.8)`."""
    return [
        cell(folder, f"{'probe' if task == 'probe' else 'head'} {i}", right, task=task, draw=i)
        for task, by_setting in scores.items()
        for i, right in enumerate(by_setting)
    ]


@pytest.mark.parametrize(
    ("others", "outcome", "lower"),
    [
        ((0.7, 0.9, 0.8), "confirmed", "head 2"),
        ((0.9, 0.7, 0.8), "contrary", "head 0"),
        ((0.8, 0.8, 0.6), "within noise", "head 0"),
    ],
)
def test_the_best_setting_of_one_is_held_against_the_best_other_of_another(
    tmp_path: Path, others: tuple[float, float, float], outcome: str, lower: str
) -> None:
    results = read_results(
        at_settings(tmp_path, probe=(0.6, 0.9, 0.7), a=others, b=(0.6, 0.9, 0.7))
    )
    table = annotated(tabulate(results), results, REPORT)
    names = [f"{kind} {i}" for kind in ("probe", "head") for i in range(3)]
    claim = {"kind": "same_best", "says": "c", "by": names[:3], "of": names[3:]}
    said = ReportConfig.model_validate({"title": "t", "claims": [claim]}).claims
    (result,) = claim_results(said, table, REPORT.bootstrap, NO_CURVES)
    on_a, on_b = result.comparisons
    assert (on_a.on, on_a.higher, on_a.lower, on_a.outcome) == ("a", "head 1", lower, outcome)
    assert (on_b.on, on_b.lower, on_b.outcome) == ("b", "head 2", "confirmed")
    assert [c["higher"] for c in claims_summary([result])[0]["comparisons"]] == ["head 1"] * 2


def test_the_best_setting_is_that_of_the_tasks_that_all_settings_share(tmp_path: Path) -> None:
    """Setting 1 was not run on the hard task; it is not better for that."""
    scores = {"easy": (0.9, 0.8), "hard": (0.3, None)}
    cells = [
        cell(tmp_path, f"probe {i}", right, task=task, draw=i)
        for task, by_setting in scores.items()
        for i, right in enumerate(by_setting)
        if right is not None
    ]
    cells += [
        cell(tmp_path, f"head {i}", right, "easy", draw=i) for i, right in enumerate((0.9, 0.6))
    ]
    results = read_results(cells)
    table = annotated(tabulate(results), results, REPORT)
    claim = {"kind": "same_best", "says": "c", "tasks": ["easy"]}
    claim |= {"by": ["probe 0", "probe 1"], "of": ["head 0", "head 1"]}
    said = ReportConfig.model_validate({"title": "t", "claims": [claim]}).claims
    (result,) = claim_results(said, table, REPORT.bootstrap, NO_CURVES)
    (on_easy,) = result.comparisons
    assert (on_easy.higher, on_easy.outcome) == ("head 0", "confirmed")


def test_a_best_setting_of_what_was_not_run_is_not_known(tmp_path: Path) -> None:
    results = read_results(at_settings(tmp_path, a=(0.6, 0.9, 0.7)))
    table = annotated(tabulate(results), results, REPORT)
    said = SameBest(
        kind="same_best", says="c", by=("x", "y", "z"), of=("head 0", "head 1", "head 2")
    )
    (result,) = claim_results([said], table, REPORT.bootstrap, NO_CURVES)
    assert result.outcome == "not run"


def test_a_best_setting_of_which_one_was_not_run_is_not_known(tmp_path: Path) -> None:
    """The missing one might be the best."""
    results = read_results(at_settings(tmp_path, probe=(0.6, 0.9, 0.7), a=(0.6, 0.9, 0.7)))
    table = annotated(tabulate(results), results, REPORT)
    of = ("head 0", "head 1", "head 2")
    said = SameBest(kind="same_best", says="c", by=("probe 0", "probe 1", "gone"), of=of)
    (result,) = claim_results([said], table, REPORT.bootstrap, NO_CURVES)
    assert {c.outcome for c in result.comparisons} == {"not run"}


def test_a_best_setting_needs_the_same_settings() -> None:
    with pytest.raises(ValueError, match="by names 2 methods and of 3; give one of each"):
        SameBest(kind="same_best", says="c", by=("a", "b"), of=("c", "d", "e"))
