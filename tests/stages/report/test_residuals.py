"""Predictions against grades on one scale, and the clean part of test against random parts, written out."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from permafrost.stages.metrics.correlations import pearson
from permafrost.stages.report.cells import CellResult, read_results
from permafrost.stages.report.config import Residuals
from permafrost.stages.report.residuals import (
    N_PARTS,
    require_scale,
    residual_tables,
    residuals,
)
from permafrost.storage.errors import InputError
from tests.stages.report.fake_results import FakeCorpus
from tests.stages.report.scored_cells import scored_cell

N = 40
RNG = np.random.default_rng(0)
LABELS = np.round(RNG.uniform(0, 5, N), 1)
PREDICTED = {s: np.clip(LABELS / 5 + RNG.normal(0, 0.1, N), 0, 1) for s in (0, 1)}
SIDES = [np.arange(N), np.arange(N, 2 * N)]
SEEN = 15
"""Test pairs whose first text train has."""


def corpus() -> FakeCorpus:
    rows = [("train", i, 2 * N, 1.0) for i in range(SEEN)]
    rows += [("test", i, N + i, float(LABELS[i])) for i in range(N)]
    names = ("split", "text", "text_pair", "label")
    table = pa.table({name: [row[k] for row in rows] for k, name in enumerate(names)})
    return FakeCorpus(tuple(f"text {i}" for i in range(2 * N + 1)), table, (), "similarity")


@pytest.fixture
def results(tmp_path: Path) -> tuple[CellResult, ...]:
    cells = [
        scored_cell(
            *(tmp_path, method, LABELS, predicted),
            seed=seed,
            metric="pearson",
            sides=SIDES,
            self_similarity=0.9 + 0.02 * seed,
        )
        for method in ("head", "other")
        for seed, predicted in PREDICTED.items()
    ]
    return read_results(cells)


def test_differences_are_in_units_of_the_grades(results: tuple[CellResult, ...]) -> None:
    (found,) = residuals([Residuals(method="head")], results, {"t": corpus()}, 3)
    differences = {s: 5 * p - LABELS for s, p in PREDICTED.items()}
    assert found.mean == pytest.approx(np.mean([d.mean() for d in differences.values()]))
    assert found.deviation == pytest.approx(np.mean([np.std(d) for d in differences.values()]))
    assert found.of_itself == pytest.approx(5 * 0.91)
    worst = np.argsort(-np.abs(differences[0]))[:3]
    assert [p.texts for p in found.worst] == [(f"text {i}", f"text {N + i}") for i in worst]
    assert [p.prediction for p in found.worst] == pytest.approx((5 * PREDICTED[0][worst]).tolist())
    assert [p.label for p in found.worst] == LABELS[worst].tolist()


def test_the_clean_part_is_held_against_random_parts_of_its_size(
    results: tuple[CellResult, ...],
) -> None:
    (found,) = residuals([Residuals(method="head")], results, {"t": corpus()}, 3)
    parts = found.parts
    assert parts is not None
    assert parts.n_clean == N - SEEN
    assert parts.clean == pytest.approx(pearson(PREDICTED[0][SEEN:], LABELS[SEEN:]))
    rng = np.random.default_rng(1)
    own = [
        pearson(PREDICTED[0][rows], LABELS[rows])
        for rows in (rng.choice(N, N - SEEN, replace=False) for _ in range(4 * N_PARTS))
    ]
    assert parts.mean == pytest.approx(np.mean(own), abs=4 * np.std(own) / np.sqrt(N_PARTS))
    assert parts.deviation == pytest.approx(np.std(own), rel=0.2)
    assert parts.below == pytest.approx(np.mean(np.array(own) < parts.clean), abs=0.1)


@pytest.mark.parametrize(
    ("given", "grades", "is_refused"),
    [
        ({}, (0.0, 5.0), False),
        ({}, (0.0, 1.25), False),
        ({}, (0.0, 1.0), True),
        ({}, (3.0, 4.2), True),
        ({"labels": (0.0, 5.0)}, (3.0, 4.2), False),
        ({"labels": (0.0, 100.0)}, (0.0, 7.0), False),
        ({"labels": (0.0, 1.0)}, (0.0, 1.01), True),
        ({"labels": (1.0, 5.0)}, (0.9, 5.0), True),
    ],
)
def test_a_scale_holds_every_grade_and_by_default_a_good_part_of_it_is_used(
    given: dict[str, tuple[float, float]], grades: tuple[float, float], is_refused: bool
) -> None:
    config = Residuals(method="head", **given)
    labels = np.array([*grades, sum(grades) / 2])
    refused = pytest.raises(InputError, match=r"r\.labels is .* the test grades of 't' go from")
    with refused if is_refused else nullcontext():
        require_scale(config, labels, "r", "t")


def test_they_may_be_of_some_tasks(results: tuple[CellResult, ...]) -> None:
    for tasks, n in (((), 1), (("t",), 1), (("other",), 0)):
        config = Residuals(method="head", tasks=tasks)
        assert len(residuals([config], results, {"t": corpus()}, 1)) == n


def test_cosines_have_a_range_of_their_own(results: tuple[CellResult, ...]) -> None:
    config = Residuals(method="other", predictions=(-1.0, 1.0), labels=(0.0, 4.0))
    (found,) = residuals([config], results[2:], {"t": corpus()}, 1)
    (worst,) = found.worst
    row = int(worst.texts[0].split()[1])
    assert worst.prediction == pytest.approx(2 * (PREDICTED[0][row] + 1))


def test_tables_have_the_numbers_and_are_left_out_without_any(
    results: tuple[CellResult, ...],
) -> None:
    found = residuals([Residuals(method="head")], results, {"t": corpus()}, 3)
    differences, worst, parts = residual_tables(found)
    assert differences.rows[0][:2] == ("t", "head")
    assert differences.rows[0][4:] == ("4.55", "40", "2")
    assert worst.title == "t, head: pairs by the absolute difference of prediction and grade"
    assert len(worst.rows) == 3
    assert parts.rows[0][-1] == "25"
    assert residual_tables(residuals([], results, {"t": corpus()}, 3)) == ()
    classes = FakeCorpus(corpus().texts, corpus().examples, ("no", "yes"))
    assert residuals([Residuals(method="head")], results, {"t": classes}, 3) == ()


def test_a_range_that_does_not_ascend_is_refused() -> None:
    with pytest.raises(ValidationError, match="labels goes from 5 to 0"):
        Residuals(method="head", labels=(5.0, 0.0))
