"""JSON files with a checksum inside, so that a changed digit is detected as damage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from permafrost.storage.durable import VERIFY, json_bytes, read_json
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.keys import digest
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

CHECKSUM = "checksum"
"""Field with the digest of the canonical JSON of all other fields. Files of earlier versions have none."""


def sealed_bytes(fields: Mapping[str, Any]) -> bytes:
    """Readable JSON of `fields` and their checksum."""
    plain = dict(fields)
    return json_bytes({**plain, CHECKSUM: digest(plain)})


def read_sealed(path: Path, advice: str | None = None) -> tuple[dict[str, Any], bool]:
    """The fields of such a file without the checksum, and whether there was one.

    Args:
        path: of the file.
        advice: what to do if it is damaged, of a file in no home.

    Raises:
        CorruptDataError: it is not JSON, not an object, or its checksum does not match.
        FileNotFoundError: it does not exist.
    """
    content = read_json(path, advice or VERIFY)
    end = f"; {advice}" if advice else ""
    if not isinstance(content, dict):
        raise CorruptDataError(f"{public_name(path)} is damaged: it holds no JSON object{end}")
    fields = dict(cast(dict[str, Any], content))
    has_checksum = CHECKSUM in fields
    found = fields.pop(CHECKSUM, None)
    try:
        expected = digest(fields)
    except ValueError as error:  # NaN, which json reads
        raise CorruptDataError(f"{public_name(path)} is damaged: {error}{end}") from error
    if has_checksum and found != expected:
        raise CorruptDataError(
            f"{public_name(path)} is damaged: its checksum is {found!s:.40}, its content has {expected}{end}"
        )
    return fields, has_checksum


def read_versioned(path: Path, what: str, version: int) -> tuple[dict[str, Any], bool]:
    """As `read_sealed`, of a file that has a format version, which is checked before its other fields.

    Raises:
        InputError: it has another version and a right checksum, so that it is not damaged.
        CorruptDataError, FileNotFoundError: as `read_sealed`.
    """
    fields, has_checksum = read_sealed(path)
    found = fields.get("format_version", version)
    if has_checksum and found != version:
        raise InputError(
            f"{public_name(path)} has {what} format {quoted(found)}, this program reads {version}; use a "
            "version of permafrost that reads it"
        )
    return fields, has_checksum
