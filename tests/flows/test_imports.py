"""What the command line imports is kept out of the garbage collector's way, and nothing else is."""

import gc
import importlib
import json
import sys

import pytest

from permafrost.flows.imports import kept_imports


def test_nothing_is_collected_while_something_is_imported_nor_later_is_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    mine = [object()]
    with kept_imports():
        assert not gc.isenabled()
        import colorsys
    assert gc.isenabled()
    assert not any(found is vars(colorsys) for found in gc.get_objects())
    assert not any(found is mine for found in gc.get_objects())


def test_where_nothing_new_is_imported_everything_is_collected_as_before() -> None:
    mine = [object()]
    with kept_imports():
        importlib.import_module(json.__name__)
    assert gc.isenabled()
    assert any(found is mine for found in gc.get_objects())


def test_who_has_switched_collection_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with pytest.raises(ImportError), kept_imports():
            importlib.import_module("permafrost.flows.nowhere")
        assert not gc.isenabled()
    finally:
        gc.enable()
