from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.stages.report.fake_results import Grid
from tests.stages.report.fake_results import make_grid as write_grid
from tests.undrawn import undrawn as undrawn


@pytest.fixture
def make_grid(tmp_path: Path) -> Callable[..., Grid]:
    """`make_grid(tasks, methods, controls, seeds, n_words)`: a grid of plausible results on disk."""
    return partial(write_grid, tmp_path)


@pytest.fixture
def grid(make_grid: Callable[..., Grid]) -> Grid:
    """Two tasks, three methods, two controls, three seeds."""
    return make_grid()


@pytest.fixture(scope="session")
def written_grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """The same grid, shared by tests that only look at its report."""
    return write_grid(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def written(written_grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `written_grid`."""
    return written_grid.write(tmp_path_factory.mktemp("report"))
