"""Upgrading exported folders of earlier versions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from permafrost.stages.encoder.module_form import MODULE, MODULES, RECORD
from permafrost.storage.durable import json_bytes, read_json, read_whole, write_durably
from permafrost.storage.errors import CorruptDataError, InputError

EARLIER_MODULES = (
    "stages.encoder.sentence_transformers_module.FrozenBackboneHead",
    "permafrost.stages.encoder.sentence_transformers_module.FrozenBackboneHead",
)
"""Names in `modules.json` in earlier versions. The first cannot be imported any more."""

_CARD = "README.md"
_EARLIER_IMPORTS = (
    b"from stages.encoder import load_exported\n",
    b"from permafrost.stages.encoder import load_exported\n",
)
_IMPORT = b"from permafrost import load_exported\n"


@dataclass(frozen=True)
class Upgraded:
    """What was done to an exported folder."""

    folder: Path
    changed: tuple[str, ...]
    """Files that were written; empty if all were up to date."""
    needs_permafrost: bool
    """False for the plain form, which does not refer to Permafrost."""


def upgrade_exported(folder: Path) -> Upgraded:
    """Make an exported folder name `permafrost.FrozenBackboneHead`, which later versions keep.

    Each file is replaced atomically; running it again changes nothing. Vectors do not change.

    Args:
        folder: as written by `permafrost export`, or saved again by sentence-transformers.

    Raises:
        InputError: it is not an exported folder; nothing is written.
        CorruptDataError: `modules.json` is damaged.
    """
    modules = _read_modules(folder)
    ours = [m for m in modules if m["type"] in (MODULE, *EARLIER_MODULES)]
    if not ours and not (folder / RECORD).is_file():
        named = ", ".join(m["type"] for m in modules) or "nothing"
        raise InputError(
            f"{folder / MODULES} names {named} and no module of Permafrost, so 'permafrost export' did not "
            "write this folder; name an exported one"
        )
    changed: list[str] = []
    # The card first: the folder counts as up to date only once the other file is right.
    if ours and (folder / _CARD).is_file():
        card = before = read_whole(folder / _CARD)
        for line in _EARLIER_IMPORTS:
            card = card.replace(line, _IMPORT)
        if card != before:
            write_durably(folder / _CARD, card)
            changed.append(_CARD)
    if any(m["type"] != MODULE for m in ours):
        renamed = [m | {"type": MODULE} if m in ours else m for m in modules]
        write_durably(folder / MODULES, json_bytes(renamed))
        changed.append(MODULES)
    return Upgraded(folder, tuple(changed), bool(ours))


def _read_modules(folder: Path) -> list[dict[str, Any]]:
    path = folder / MODULES
    if not path.is_file():
        raise InputError(
            f"{folder} has no {MODULES}, so 'permafrost export' did not write it; name an exported folder"
        )
    modules = read_json(path, "export again")
    if not (
        isinstance(modules, list)
        and all(isinstance(m, dict) and isinstance(m.get("type"), str) for m in modules)
    ):
        raise CorruptDataError(f"{path} is damaged: it lists no modules with a type; export again")
    return modules
