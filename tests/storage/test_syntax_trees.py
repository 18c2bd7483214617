"""Syntax trees in several threads."""

import ast
import gc
import inspect
import threading
import time
from pathlib import Path

import pytest

from permafrost.storage.syntax_trees import syntax_tree


class LetsOthersRun:
    """Garbage that only the collector finds, and whose removal gives way to another thread."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_that_parse_at_once_all_get_their_tree() -> None:
    source = Path(inspect.__file__).read_text(encoding="utf-8")
    wanted = len(ast.parse(source).body)
    found = list[int]()

    def parse() -> None:
        for _ in range(4):
            for _ in range(100):
                LetsOthersRun()
            found.append(len(syntax_tree(source).body))

    gc.enable()  # a command that ran in this process may have left it off
    threads = [threading.Thread(target=parse) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 12


def test_a_tree_that_met_another_librarys_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = ast.parse, list[str]()

    def meets_another(source: str) -> ast.Module:
        calls.append(source)
        if len(calls) < 3:
            raise SystemError("AST constructor recursion depth mismatch (before=18, after=11)")
        return own(source)

    monkeypatch.setattr(ast, "parse", meets_another)
    assert len(syntax_tree("a = 1").body) == 1
    assert calls == ["a = 1"] * 3

    def never_works(source: str) -> ast.Module:
        raise SystemError("another matter")

    monkeypatch.setattr(ast, "parse", never_works)
    with pytest.raises(SystemError, match="another matter"):
        syntax_tree("a = 1")


def test_what_is_no_python_is_told() -> None:
    with pytest.raises(SyntaxError):
        syntax_tree("a = ")
