"""Which of many cases are short."""

from itertools import product

from tests.short import few


def test_few_cases_have_every_value() -> None:
    cases = [f"f::t[{a}-{b}-{c}]" for a, b, c in product("uvw", "xy", "1234")]
    kept = few(cases, 4)
    assert len(kept) == 4
    parts = [case.removeprefix("f::t[").rstrip("]").split("-") for case in kept]
    assert [set(values) for values in zip(*parts, strict=True)] == [
        set("uvw"),
        set("xy"),
        set("1234"),
    ]
    assert few(list(reversed(cases)), 4) == kept
    assert few(cases[:2], 5) == set(cases[:2])
