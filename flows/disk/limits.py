"""How long and how much `gc` leaves of what no run has to keep: an age, a quota."""

import re
from dataclasses import dataclass

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_BYTES = {
    **{unit: 1000**i for i, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))},
    **{unit: 1024**i for i, unit in enumerate(("KIB", "MIB", "GIB", "TIB", "PIB"), start=1)},
}


@dataclass(frozen=True)
class Limits:
    """Without limits everything that no run has to keep goes."""

    older_than_s: float | None = None
    """Only what was last used longer ago than this many seconds goes."""
    quota_bytes: int | None = None
    """Only as much goes as brings the home down to this many bytes, what was used longest ago first."""


def parse_limits(older_than: str | None, quota: str | None) -> Limits:
    """Limits as people write them: `30d`, `200GB`.

    Raises:
        InputError: one is not written so.
    """
    return Limits(
        None if older_than is None else _parse_age(older_than),
        None if quota is None else _parse_bytes(quota),
    )


def _parse_age(text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hdw])\s*", text)
    if match is None:
        raise InputError(
            f"--older-than is {quoted(text)}; write a number of hours, days or weeks, as in 12h, 30d or 8w"
        )
    return float(match[1]) * _HOURS[match[2]] * 3600


def _parse_bytes(text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    if match is None or (factor := _BYTES.get(match[2].upper())) is None:
        raise InputError(
            f"--quota is {quoted(text)}; write a number and a unit, as in 500MB, 200GB or 1.5TB "
            "(GiB is 1024^3)"
        )
    return int(float(match[1]) * factor)
