"""Readable messages for pydantic's validation errors."""

from pydantic import ValidationError

from permafrost.storage.quoting import LIMIT, quoted, visible

_LISTED = 10


def wrong_fields(error: ValidationError, separator: str = "\n  ") -> str:
    """Field, reason and value of the first errors."""
    errors = error.errors(include_url=False)
    lines = [
        f"{_cut('.'.join(map(str, e['loc'])))}: {_cut(e['msg'], 4 * LIMIT)} (given: {quoted(e['input'])})"
        for e in errors[:_LISTED]
    ]
    if len(errors) > _LISTED:
        lines.append(f"and {len(errors) - _LISTED:,} more")
    return separator.join(lines)


def _cut(text: str, limit: int = LIMIT) -> str:
    return visible(text if len(text) <= limit else f"{text[:limit]}…")
