"""Differences between the code of two artifacts, by file."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from permafrost.flows.why.changed_fields import Change, listed

_ROOMS = Path(__file__).parents[2]
_PACKAGE, _PLUGINS = "permafrost.", "permafrost_plugins."


def code_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    """One change per folder, with the files in which definitions differ, appeared or disappeared.

    Args:
        old: digest of each definition that the earlier artifact's stage reached, by `module:name`.
        new: the same of the later one.
    """
    names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    files = sorted({_file(name.partition(":")[0]) for name in names})
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(str(file.parent), []).append(file.name)
    return [
        Change(f"{_whose(folder)} changed: {listed(found)}", "code", new=found)
        for folder, found in folders.items()
    ]


def _whose(folder: str) -> str:
    return "code of plug-ins" if folder == _PLUGINS else f"code of {folder}"


def _file(module: str) -> PurePosixPath:
    if module.startswith(_PLUGINS):
        return PurePosixPath(_PLUGINS, f"{module.removeprefix(_PLUGINS)}.py")
    path = PurePosixPath(*module.removeprefix(_PACKAGE).split("."))
    return path / "__init__.py" if (_ROOMS / path).is_dir() else path.with_suffix(".py")
