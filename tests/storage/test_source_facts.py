"""What is kept of sources is found again by their content, and never stands for another one."""

import hashlib
import os
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from permafrost.storage import source_facts as module
from permafrost.storage.source_facts import SourceFacts, source_facts

SOURCE = """
import json
from .near import step as one

SCALE = 2

def run(x):
    from .far import deep
    return one(deep(x)) * SCALE + json.loads("1")

if SCALE:
    print("hello")
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path))
    return tmp_path


def facts(source: str = SOURCE) -> SourceFacts:
    return source_facts(source, "pkg.main", is_package=False)


@pytest.fixture
def n_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources that were read off their syntax tree."""
    seen: list[str] = []
    read = module._read

    def counted(source: str, package: str) -> SourceFacts:
        seen.append(source)
        return read(source, package)

    monkeypatch.setattr(module, "_read", counted)
    return seen


def test_a_source_is_read_once_and_then_kept(n_read: list[str]) -> None:
    first = facts()
    assert facts() == first
    assert n_read == [SOURCE]
    assert first.definitions.keys() == {"SCALE", "run"}
    assert first.imports["one"] == (("pkg.near", "step"),)
    assert ("pkg.far", "deep", ()) in first.definitions["run"].imported
    assert first.effects is not None


def test_the_content_counts_and_not_the_time(n_read: list[str], cache: Path) -> None:
    before = facts()
    (kept,) = (cache / "code").iterdir()
    edited = SOURCE.replace("SCALE = 2", "SCALE = 3")
    # As old as can be, or from the future: neither matters.
    for times in ((0, 0), (1 << 33, 1 << 33)):
        os.utime(kept, times)
        assert facts(edited) != before
        assert facts() == before
    assert n_read == [SOURCE, edited, SOURCE, edited, SOURCE]


def test_where_relative_imports_count_from_is_part_of_it(n_read: list[str]) -> None:
    facts()
    inside = source_facts(SOURCE, "pkg.main", is_package=True)
    assert inside.imports["one"] == (("pkg.main.near", "step"),)


def test_another_python_or_another_version_of_the_reader_reads_again(
    n_read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts()
    assert hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest() == module.READER
    monkeypatch.setattr(module, "READER", "another")
    facts()
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    facts()
    assert len(n_read) == 3


OTHER = b"{}"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b"0\n{}", b"\xff\n\xff", sha256(OTHER).hexdigest().encode() + b"\n" + OTHER],
)
def test_a_damaged_file_is_read_again(n_read: list[str], cache: Path, damage: bytes) -> None:
    before = facts()
    (kept,) = (cache / "code").iterdir()
    whole = kept.read_bytes()
    for content in (damage, whole[:-9], whole.replace(b"pkg.far", b"pkg.fur")):
        kept.write_bytes(content)
        assert facts() == before
    assert len(n_read) == 4
    assert kept.read_bytes() == whole


def test_without_a_place_to_keep_it_everything_works(
    n_read: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("PERMAFROST_CACHE", str(cache / "file"))
    assert facts() == facts()

    def nowhere() -> Path:
        raise RuntimeError("no home")

    for name in ("PERMAFROST_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert facts() == facts()
    assert len(n_read) == 4


def test_what_only_readers_of_types_import_has_no_effect_and_is_followed_from_annotations() -> None:
    found = facts(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .heavy import Tensor\n"
        "def run(x: Tensor): ...\n"
    )
    assert found.effects is None
    assert found.imports["Tensor"] == (("pkg.heavy", "Tensor"),)
    assert ("Tensor",) in found.definitions["run"].names


FORMATTED = """
def tell(names, ratio, width):
    quotes = f"there are {', '.join(names)}" + f'it\\'s {names[0]!r:>{width}} and {ratio:.2f}'
    return quotes, f"{ratio=}", f"{{}}", (lambda *, k=None: f"{k}" f"-{k!s}"), {**dict(a=1)}
"""


def digest_of(source: str) -> str:
    return facts(source).definitions["tell"].digest


def test_every_version_of_python_gives_the_same_digest() -> None:
    """3.12 writes other quotes into f-strings than 3.11: a new Python would have trained everything again."""
    assert digest_of(FORMATTED) == "0fc6c25e3be90af1"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("there are ", "there were "),
        ("', '", "'; '"),
        ("!r", "!s"),
        (":>{width}", ":<{width}"),
        ("{width}", "{ratio}"),
        (".2f", ".3f"),
        ("names[0]", "names[1]"),
        ('f"{{}}"', 'f"{ratio}"'),
    ],
)
def test_every_part_of_a_formatted_string_counts(old: str, new: str) -> None:
    assert old in FORMATTED
    assert digest_of(FORMATTED.replace(old, new)) != digest_of(FORMATTED)


@pytest.mark.parametrize(
    "body",
    [
        "if x == 0:\n  y\n" + "".join(f"elif x == {n}:\n  y\n" for n in range(1, 300)),
        " + ".join("x" * 300),
    ],
)
def test_what_is_nested_deeply_has_a_digest(body: str) -> None:
    source = "def tell(x, y):\n" + "".join(f"  {line}\n" for line in body.splitlines())
    assert digest_of(source) != digest_of(source.replace("x", "y"))


def test_how_a_formatted_string_is_quoted_or_split_does_not_count() -> None:
    other = FORMATTED.replace(
        """f"there are {', '.join(names)}\"""", """'there ' f'are {", ".join(names)}'"""
    )
    assert other != FORMATTED
    assert digest_of(other) == digest_of(FORMATTED)
