"""`store.json`: the description of a feature store, with its own checksum, and its copy.

Everything in a store is read according to the sizes in this file, so it is kept twice: a change to either is
detected by the checksum and repaired from the other.
"""

import contextlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.durable import create_durably, holds, is_there, rewrite, write_durably
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from permafrost.storage.features.identity import FORMAT_VERSION, StoreIdentity, require_same
from permafrost.storage.features.layout import Axes, Codec, StoreSizes, check_axes
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name
from permafrost.storage.sealed import read_sealed, sealed_bytes

RECORD = "store.json"
FORMAT = "permafrost-features"
LAST_RESORT = "put one of the two files back from a backup, or delete the folder and extract again"
"""What to do where neither the record nor its copy can be used."""


class StoreRecord(BaseModel):
    """The content of `store.json`, without its checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    store_id: str
    identity: StoreIdentity
    axes: Axes
    sizes: StoreSizes
    codec: Codec
    backbone: dict[str, str]
    """How to find the backbone again (source, revision); a hint, never part of the identity."""
    created: str


def record_path(root: Path) -> Path:
    """The path of a store's record."""
    return root / RECORD


def copy_path(root: Path) -> Path:
    """The path of its copy; stores of earlier versions get one when they are next written."""
    return root / "copies" / RECORD


def create_record(root: Path, record: StoreRecord) -> bool:
    """Write the record of a new store and its copy; returns False if another process or machine has created
    the store meanwhile."""
    content = sealed_bytes(record.model_dump(mode="json"))
    if not create_durably(record_path(root), content):
        return False
    write_durably(copy_path(root), content)
    return True


def keep_record(root: Path, record: StoreRecord) -> None:
    """Write the record and its copy unless they have exactly this content."""
    content = sealed_bytes(record.model_dump(mode="json"))
    for path in (record_path(root), copy_path(root)):
        if not holds(path, content):
            rewrite(path, content)


def read_record(root: Path, expect: StoreIdentity | None = None) -> StoreRecord:
    """The record of the store in the folder `root`.

    Raises:
        NotFoundError: there is no store.
        InputError: it has another format version.
        CorruptDataError: `store.json` is damaged, missing, or does not match its own id.
        IdentityMismatchError: its identity is not `expect`.
    """
    path = record_path(root)
    try:
        record = parse_record(path)
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}{_record_advice(root)}") from error
    except FileNotFoundError as error:
        if not has_record(root):
            raise NotFoundError(
                f"there is no feature store at {root} (no {RECORD}); see 'permafrost ls'"
            ) from error
        raise CorruptDataError(f"{public_name(path)} is gone{_record_advice(root)}") from error
    _require_checksum(root, record)
    _require_possible(root, record)
    if expect is not None:
        require_same(record.identity, expect, str(root))
    if record.identity.store_id != record.store_id:
        raise CorruptDataError(
            f"{public_name(path)} says store_id {record.store_id}, but its identity has the digest "
            f"{record.identity.store_id}; the file was changed by hand{_record_advice(root)}"
        )
    if record.store_id != root.name:
        raise CorruptDataError(
            f"{public_name(path)} is of store {record.store_id}, its folder is {root.name}"
            f"{_record_advice(root, record.store_id)}"
        )
    return record


def _require_checksum(root: Path, record: StoreRecord) -> None:
    """Check that a record without a checksum is of an earlier version; if it has lost its checksum, its copy
    still has one."""
    _, has_checksum = read_sealed(record_path(root))
    if has_checksum or not is_there(copy_path(root)):
        return
    with contextlib.suppress(CorruptDataError, InputError):
        if parse_record(copy_path(root)) == record:
            return
    raise CorruptDataError(
        f"{record_path(root)} has lost its checksum and is not what {copy_path(root)} says"
        f"{_record_advice(root, record.store_id)}"
    )


def _require_possible(root: Path, record: StoreRecord) -> None:
    """Refuse sizes that no store can have, in a record of an earlier version."""
    numbers = {**record.sizes.model_dump(), **record.axes.model_dump()}
    try:
        check_axes(record.axes, record.identity.max_length)
        wrong = next((f"{n} is {size}" for n, size in numbers.items() if size < 1), None)
    except InputError as error:
        wrong = str(error)
    if wrong is not None:
        raise CorruptDataError(
            f"{record_path(root)} is damaged: {wrong}{_record_advice(root, record.store_id)}"
        )


def has_record(root: Path) -> bool:
    """Whether a folder is a feature store, even if its `store.json` is damaged or missing. A creation that
    was killed leaves a folder that is not one yet."""
    has_file = is_there(record_path(root)) or is_there(copy_path(root))
    # Not by folders, which a replica keeps when what was in them is gone.
    return has_file or any(p.is_file() for p in root.glob("receipts/*/**/*.json"))


def read_copy(root: Path) -> StoreRecord | None:
    """The copy of the record; None if there is none.

    Raises:
        CorruptDataError: it is damaged.
    """
    path = copy_path(root)
    if not is_there(path):
        return None
    try:
        return parse_record(path)
    except CorruptDataError as error:
        raise CorruptDataError(f"{error}{advice(root)}") from error


def parse_record(path: Path) -> StoreRecord:
    """Parse a file as a record, and check its checksum.

    Raises:
        InputError: it has another format version.
        CorruptDataError: it is damaged.
    """
    fields, _ = read_sealed(path)
    if fields.get("format") != FORMAT:
        raise CorruptDataError(
            f"{public_name(path)} is damaged: its format is {quoted(fields.get('format'))}, a store's record "
            f"has {quoted(FORMAT)}"
        )
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{public_name(path)} has store format {quoted(version)}, this program reads {FORMAT_VERSION}; "
            f"use a version of permafrost that reads it, or extract into a fresh --home"
        )
    try:
        return StoreRecord.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptDataError(
            f"{public_name(path)} is damaged: {where}: {first['msg']}"
        ) from error


def _record_advice(root: Path, store_id: str | None = None) -> str:
    """End of every message about a damaged record; `store_id` is that of the record, if it can be used. The
    copy is what `repair` would put in its place, so a copy of another store says whose folder this was."""
    try:
        store_id = parse_record(copy_path(root)).store_id
    except (CorruptDataError, FileNotFoundError):
        if store_id is None:
            copy = public_name(copy_path(root))
            return f"; its copy {copy} is gone or damaged as well: {LAST_RESORT}"
    except (InputError, OSError):
        pass  # which `repair` says
    if store_id in (None, root.name):
        return advice(root)
    return (
        f"; the folder was copied or renamed: rename it to {store_id}, or delete it if there is one of that "
        "name"
    )


def advice(root: Path) -> str:
    """End of every message about damage that `repair` mends from a copy."""
    return f"; 'permafrost repair {root.name[:12]}' writes it again"
