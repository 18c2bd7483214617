"""A file that is read, and its content as chance changes it: its bytes, or values in what is well formed."""

import copy
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from permafrost.storage.errors import PermafrostError
from permafrost.storage.sealed import sealed_bytes

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 1e308, "", "x", "\u0000", "../..", "a" * 300, [], [[]], {}, {"x": 1},
)  # fmt: skip
Change = Callable[[bytes, random.Random], bytes]
"""Another content made of one."""
_WORDS = (
    b"null", b"-1", b"1e999", b"{", b"]", b'"', b"\\u0000", b"\xff\xfe", b"\n", b"&a *a",
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A file of some format."""

    path: Path
    read: Callable[[], object]
    """What is in it, to be compared; raises errors of ours."""
    values: Change | None = None
    """Puts other values into it, so that it stays well formed; half of the contents are made by it."""
    open: bool = False
    """Whether people write it: other content is read as such."""
    slow: bool = False
    """Whether reading takes a tenth of a second: a tenth of the contents is tried."""


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes flipped, cut out, put in, doubled or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, n = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
        match rng.randrange(7):
            case 0 if at < len(content):
                flipped = bytes([content[at] ^ 1 << rng.randrange(8)])
                content = content[:at] + flipped + content[at + 1 :]
            case 1:
                content = content[:at] + content[at + n :]
            case 2:
                content = content[:at] + rng.randbytes(n) + content[at:]
            case 3:
                content = content[:at]
            case 4:
                content = content[:at] + content[at : at + n] * 2 + content[at + n :]
            case 5:
                word = rng.choice(_WORDS)
                content = content[:at] + word + content[at + rng.randrange(4) :]
            case _:
                content = content[:at] + content[at : at + n][::-1] + content[at + n :]
    return content


def sealed_values(content: bytes, rng: random.Random) -> bytes:
    """Sealed JSON with other values under its right checksum."""
    fields = json.loads(content)
    fields.pop("checksum", None)
    _change(fields, rng)
    return sealed_bytes(fields)


def json_values(content: bytes, rng: random.Random) -> bytes:
    """JSON with other values."""
    fields = json.loads(content)
    _change(fields, rng)
    return json.dumps(fields).encode()


def line_values(content: bytes, rng: random.Random) -> bytes:
    """JSON lines, one of them with other values."""
    lines = content.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json_values(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def yaml_values(content: bytes, rng: random.Random) -> bytes:
    """YAML with other values."""
    fields = yaml.safe_load(content)
    for _ in range(rng.choice((1, 1, 2))):
        _change(fields, rng)
    return yaml.safe_dump(fields).encode()


def cell_values(content: bytes, rng: random.Random) -> bytes:
    """A table of lines and commas with another cell."""
    lines = [line.split(b",") for line in content.splitlines()]
    row = rng.choice(lines)
    row[rng.randrange(len(row))] = str(_strange(rng)).encode()
    return b"\n".join(map(b",".join, lines)) + b"\n"


def parquet_values(content: bytes, rng: random.Random) -> bytes:
    """A parquet file with other values in a column; as it is where Arrow has no such column."""
    table = pq.read_table(io.BytesIO(content))
    rows, value = table.to_pylist(), _strange(rng)
    name = rng.choice(table.column_names)
    for row in rows if rng.random() < 0.5 else rng.sample(rows, 1):
        row[name] = value
    out = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_pylist(rows), out)
    except (pa.ArrowException, OverflowError):
        return content
    return out.getvalue()


def _change(fields: Any, rng: random.Random) -> None:
    place, at = fields, _any_of(fields, rng)
    while isinstance(place[at], dict | list) and place[at] and rng.random() < 0.7:
        place = place[at]
        at = _any_of(place, rng)
    match rng.randrange(4):
        case 0:
            del place[at]
        case 1 if isinstance(place, dict):
            place["unknown"] = _strange(rng)
        case _:
            place[at] = _strange(rng)


def _strange(rng: random.Random) -> Any:
    """One of its own: what is put into it later is in no other."""
    return copy.deepcopy(rng.choice(STRANGE))


def _any_of(place: Any, rng: random.Random) -> Any:
    return (
        rng.choice(sorted(place, key=str)) if isinstance(place, dict) else rng.randrange(len(place))
    )


def try_one(form: Format, right: object, content: bytes, *, well_formed: bool) -> bool:
    """Read a file with other content, and put the right one back; whether it was refused.

    Raises:
        AssertionError: it was read as something else than what was written, or the error is not ours.
    """
    before = form.path.read_bytes()
    form.path.write_bytes(content)
    try:
        found = form.read()
    except PermafrostError:
        return True
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {content!r:.2000}") from error
    finally:
        form.path.write_bytes(before)
    same = found == right or form.open or well_formed
    assert same, f"read as something else: {content!r:.2000}"
    return False
