"""Experiment files are YAML 1.2, and none of them takes time or memory without end."""

import time
from typing import Any

import pytest

from permafrost.flows.experiment_files import yaml_reader
from permafrost.flows.experiment_files.yaml_reader import MAX_FILE_BYTES, Merging, read_yaml
from permafrost.storage.errors import InputError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("[yes, on, off, y]", ["yes", "on", "off", "y"]),
        ("[true, False]", [True, False]),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("-5", -5),
        ("9223372036854775807", 2**63 - 1),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("~", None),
        ("", None),
        ("١", "١"),
        ("!!str 5", "5"),
        ("{no: 1}", {"no": 1}),
        ("{x: &x {k: 1}, y: {<<: *x, c: 2}}", {"x": {"k": 1}, "y": {"k": 1, "c": 2}}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    found = read_yaml(text, "x.yaml")
    assert found == value
    assert type(found) is type(value)


_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
_MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12)
)

REFUSED = {
    "a list in itself": "a: &a [*a]",
    "a mapping in itself": "a: &a {b: *a}",
    "a mapping merged into itself": "x: &a\n  <<: *a",
    "ten to the twelfth values": _LAUGHS,
    "ten to the twelfth merges": _MERGES,
    "lists in lists": "[" * 10_000,
    "mappings in mappings": "{a: " * 10_000,
    "blocks in blocks": "- " * 5_000 + "a",
    "a long integer": "a: " + "9" * 5_000,
    "65 bits": "9223372036854775808",
    "a long hexadecimal integer": "0x" + "f" * 5_000,
    "a key twice": "a: 1\na: 2",
    "a key that is a list": "? [1]\n: 2",
    "an object": "a: !!python/object/apply:os.getcwd []",
    "a tag of one's own": "a: !mine x",
    "a merge of a number": "<<: 3",
    "half of a character": 'a: "\\ud800"',
    "a NUL byte": "a: \0",
    "an unknown alias": "a: *" + "e" * 20_000,
    "two documents": "a: 1\n---\nb: 2",
    "more than an experiment": "a" * (MAX_FILE_BYTES + 1),
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_end_or_no_one_meaning_is_refused_shortly_and_soon(text: str) -> None:
    started = time.monotonic()
    with pytest.raises(InputError, match=r"^x\.yaml ") as caught:
        read_yaml(text, "x.yaml")
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 10


def test_a_message_names_line_and_column() -> None:
    with pytest.raises(InputError, match="line 2, column 3: the key 'b' stands here twice"):
        read_yaml("a: {b: 1,\n  b: 2}", "x.yaml")


def test_a_variable_without_quotation_marks_inside_brackets_is_explained() -> None:
    for text in ("a: {b: ${D}/x.csv}", "a:\n  - [${D}/x, 1]"):
        with pytest.raises(InputError, match=r"expected .* has to be in quotation marks"):
            read_yaml(text, "f")
    assert read_yaml("a: ${D}/x.csv", "f") == {"a": "${D}/x.csv"}


@pytest.mark.parametrize("fast", ["libyaml", "python"])
def test_both_parsers_read_the_same(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fast == "python":
        monkeypatch.setattr(yaml_reader, "_FAST", None)
    else:
        assert yaml_reader._FAST is not None, "wheels of PyYAML have libyaml"
    text = "a: &x {b: no, c: 010, d: 0o17, e: 1e3, f: -.inf, g: ~, h: true}\nk:\n  <<: *x\n  b: é\n"
    expected = {"b": "no", "c": 10, "d": 15, "e": 1000.0, "f": float("-inf"), "g": None, "h": True}
    assert read_yaml(text, "f") == {"a": expected, "k": {**expected, "b": "é"}}
    for wrong, says in {
        "[" * 500_000: "line 1, column 41: lists and mappings are nested",
        "a: [1, 2": r"line 1, column 9: expected ',' or '\]'",
        "a:\n\t- 1": r"line 2, column 1: found character '\\t'",
        'a: "\\ud800"': "holds half of a character",
        "a: \ud800": "unacceptable character",
        "a: 1\na: 2": "line 2, column 1: the key 'a' stands here twice",
        "a: &x [*x]": "an alias is inside the value",
    }.items():
        with pytest.raises(InputError, match=says):
            read_yaml(wrong, "f")


def test_a_mapping_knows_what_it_merges() -> None:
    text = (
        "n: {deep: {a: &a {x: 1, y: 1}}}\nb: &b {<<: *a, x: 2}\nc: {<<: [*b, {y: 3, z: 3}], w: 4}"
    )
    found = read_yaml(text, "f")
    b, c = found["b"], found["c"]
    assert (b, c) == ({"x": 2, "y": 1}, {"x": 2, "y": 1, "z": 3, "w": 4})
    assert isinstance(c, Merging)
    assert b.merged is found["n"]["deep"]["a"]
    assert (c.own, c.merged) == ({"w"}, [b, {"y": 3, "z": 3}])
    b.merged["y"] = 5
    b.merge()
    c.merge()
    assert c == {"x": 2, "y": 5, "z": 3, "w": 4}
