"""Small packages on disk, whose code is fingerprinted before and after an edit."""

import importlib
import sys
import textwrap
from itertools import count
from pathlib import Path

from permafrost.storage import fingerprint as module
from permafrost.storage.fingerprint import CodeFingerprint, fingerprint

_serial = count()


def forget() -> None:
    """As in a new process."""
    for known in (module._MODULES, module._IS_MODULE, module._REACHED, module._FINGERPRINTS):
        known.clear()


class Package:
    """A package whose files can be edited, and the fingerprint of its `main.run`."""

    def __init__(self, folder: Path) -> None:
        self.name = f"proj{next(_serial)}"
        self.folder = folder / self.name
        self.write("__init__", "")

    def write(self, name: str, source: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).replace("PKG", self.name))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / f"{name}.py"
        source = path.read_text()
        assert source.count(old) == 1
        path.write_text(source.replace(old, new))

    def fingerprint(self) -> CodeFingerprint:
        forget()
        module._LOADED.clear()
        importlib.invalidate_caches()
        # Files of one second and one size count as the same to Python.
        for compiled in self.folder.rglob("*.pyc"):
            compiled.unlink()
        for loaded in [m for m in sys.modules if m.split(".")[0] == self.name]:
            del sys.modules[loaded]
        return fingerprint(importlib.import_module(f"{self.name}.main").run, [self.name])

    def reached(self) -> set[str]:
        return {d.removeprefix(f"{self.name}.") for d in self.fingerprint().definitions}
