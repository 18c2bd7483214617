"""Whoever opens the dashboard's address, which a run prints, sees what its workers do."""

from urllib.request import urlopen

import pytest
from distributed import Client


@pytest.mark.deep
def test_the_dashboard_has_pages(scheduler: str) -> None:
    pytest.importorskip("bokeh", reason="an older installation has no bokeh")
    with Client(scheduler, set_as_default=False) as client:
        address = client.dashboard_link
    with urlopen(address, timeout=60) as answer:
        page = answer.read().decode()
    assert 'id="status-fluid"' in page, "the figures, in place of a line that bokeh is missing"
