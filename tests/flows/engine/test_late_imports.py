"""Libraries whose modules import each other in circles are there before threads ask for them."""

import ast
from pathlib import Path

from permafrost import stages
from permafrost.flows.engine.late_imports import EVERY_STAGE, OF_STAGE

ROOT = Path(stages.__path__[0])
CIRCULAR = ("sklearn", "scipy", "mteb", "transformers", "peft")


def late_imports() -> set[str]:
    """Modules of those libraries that functions of stages import."""
    found = set[str]()
    for path in ROOT.rglob("*.py"):
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        ]
        for node in (n for function in functions for n in ast.walk(function)):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in CIRCULAR}


def test_what_nodes_import_late_is_named() -> None:
    named = {*EVERY_STAGE, *(name for names in OF_STAGE.values() for name in names)}
    late = late_imports()
    assert "sklearn.linear_model" in late
    parents = {".".join(name.split(".")[:i]) for name in named for i in range(1, 4)}
    assert not late - named - parents
