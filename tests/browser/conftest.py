from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.devtools import NAMES, Browser, find_browser
from tests.browser.full_report import full_grid
from tests.stages.report.fake_results import Grid


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless browser for all tests; skips where none is installed."""
    path = find_browser()
    if path is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed, so no page can be looked at")
    found = Browser(path, tmp_path_factory.mktemp("browser") / "profile")
    yield found
    found.close()


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """Results with something for every section."""
    return full_grid(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="session")
def report(full: Grid, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of their report, whose name has to be escaped in a URL."""
    return full.write(tmp_path_factory.mktemp("a report"))
