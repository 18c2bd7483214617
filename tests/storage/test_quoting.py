"""Values in messages are short and harmless."""

import pytest

from permafrost.storage.quoting import LIMIT, MESSAGE_LIMIT, quoted, shortened, visible


def test_a_value_is_quoted_as_python_writes_it() -> None:
    assert quoted("GLOT [k=2]") == "'GLOT [k=2]'"
    assert quoted({"a": 1}) == "{'a': 1}"


@pytest.mark.parametrize(
    "value",
    ["x" * 20_000, b"x" * 20_000, ["x"] * 20_000, {"x" * 20_000: 1}, 10**5000, [10**5000]],
    ids=["text", "bytes", "list", "key", "integer", "list of integers"],
)
def test_at_most_a_hundred_characters_of_a_value_are_quoted(value: object) -> None:
    text = quoted(value)
    assert len(text) < LIMIT + 40
    assert "x" * (LIMIT + 1) not in text


def test_a_value_that_is_nested_too_deeply_has_a_name() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert quoted(value) == "a list"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("m[/b]", "m[/b]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\rc\0", "a\\nb\\rc\\x00"),
        ("\u202eabc", "\\u202eabc"),
        ("\ud800", "\\ud800"),
        ("Zoë 雪\u00a0\u200d", "Zoë 雪\u00a0\u200d"),
    ],
)
def test_what_a_terminal_would_obey_is_made_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_message_keeps_its_lines_and_is_cut_where_it_is_too_long() -> None:
    assert shortened("two wrong fields:\n  a\x1b[2J\n  b") == "two wrong fields:\n  a\\x1b[2J\n  b"
    assert "x" * (LIMIT + 1) not in shortened(f"there is no file {'x' * 20_000}; give another")
    assert len(shortened("a column, " * 20_000)) < MESSAGE_LIMIT + 40
