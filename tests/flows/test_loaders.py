"""Every loader that a node names by its import path is there, and takes a folder."""

import inspect
from pathlib import Path

import pytest

from permafrost.flows import loaders
from permafrost.flows.graph import import_path, resolve

NAMED = {name: path for name, path in vars(loaders).items() if name.isupper()}


@pytest.mark.parametrize("name", NAMED)
def test_a_loader_is_there_under_its_path(name: str) -> None:
    found = resolve(NAMED[name])
    assert import_path(found) == NAMED[name], "another module defines it"
    assert "folder" in inspect.signature(found).parameters


def test_there_are_some() -> None:
    assert len(NAMED) >= 8
    assert not any(Path(path.partition(":")[0]).suffix == ".py" for path in NAMED.values())
