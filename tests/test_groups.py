"""Tests that share what is dear to make run in one process."""

import pytest


def test_the_tests_of_a_file_stay_together(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes the group into the test's id, or did not see that there is one."""
    grouped = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@tests/test_groups.py") == bool(grouped)
