"""Identity. Run this file as a script to write golden/keys.json again; explain the change in the commit."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from permafrost.storage.artifacts import ArtifactSpec
from permafrost.storage.errors import IdentityMismatchError
from permafrost.storage.features.identity import StoreIdentity, require_same
from permafrost.storage.keys import canonical_json, definitions_digest, digest, text_digest
from tests.storage.small_store import IDENTITY

GOLDEN = Path(__file__).parents[1] / "golden" / "keys.json"

SPEC = ArtifactSpec(
    stage="fit",
    config={"head": {"kind": "glot", "layers": (2, 4)}, "lr": 0.001, "seed": 0},
    inputs=("corpus/" + "0" * 32, "features/" + "1" * 32 + "/hidden/6"),
    code={"permafrost.stages.fit:fit": "abc"},
)

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "integer": 3,
    "float": 0.1,
    "tiny float": 1e-300,
    "text": "Größe — 数",
    "list": [1, "a", None],
    "nested": {"b": {"y": 2, "x": [1.5]}, "a": ()},
    "artifact": json.loads(SPEC.model_dump_json()),
    "store": json.loads(IDENTITY.model_dump_json()),
}

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def current() -> dict[str, str]:
    keys = {name: digest(value) for name, value in VALUES.items()}
    keys["ArtifactSpec"] = SPEC.ref.key
    keys["StoreIdentity"] = IDENTITY.store_id
    keys["text_digest"] = text_digest("Größe — 数")
    return keys


def regenerate() -> None:
    GOLDEN.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n")


def test_keys_are_the_literals_that_earlier_versions_gave() -> None:
    assert current() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"\$\.a\[1\].*finite"):
        digest({"a": [0, value]})


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), Path("x"), b"bytes", np.int64(3), np.zeros(2), 1j, frozenset()]
)
def test_a_type_without_a_canonical_form_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match=r"\$\.deep\.field is a " + type(value).__name__):
        digest({"deep": {"field": value}})


def test_a_key_that_is_not_text_is_refused() -> None:
    with pytest.raises(TypeError, match="string keys"):
        digest({1: "a"})


@given(PLAIN)
def test_canonical_json_loses_nothing(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), PLAIN, min_size=2, max_size=5
    )
)
def test_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    assert digest(OrderedDict(reversed(value.items()))) == digest(value)


@given(st.lists(PLAIN, max_size=4))
def test_a_tuple_has_the_key_of_the_list(value: list[Any]) -> None:
    assert digest(tuple(value)) == digest(value)


def test_a_model_has_the_key_of_its_fields() -> None:
    class Config(BaseModel):
        layers: tuple[int, ...] = (1, 2)
        rate: float = 1

    assert digest(Config()) == digest({"rate": 1.0, "layers": [1, 2]})
    assert digest(Config(rate=1.0)) == digest(Config())


def test_values_that_look_alike_have_different_keys() -> None:
    alike = [1, "1", True, None, "None", [1], {"1": 1}, 1.5, "", [], {}]
    assert len({digest(v) for v in alike}) == len(alike)


def test_text_digest_is_sha256_of_the_utf8_bytes() -> None:
    # printf abc | sha256sum
    assert text_digest("abc") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert text_digest("\ud800") != text_digest("?")


def _changed(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, "more/" + "2" * 32)
        case dict():
            return {**value, "another": 1}
    raise AssertionError(value)


IDENTITY_CHANGES = {
    "compute_dtype": "bfloat16",
    "storage_dtype": "float32",
}


@pytest.mark.parametrize("name", StoreIdentity.model_fields)
def test_every_field_of_a_store_identity_changes_the_store_id(name: str) -> None:
    value = IDENTITY_CHANGES.get(name, _changed(getattr(IDENTITY, name)))
    other = StoreIdentity.model_validate({**IDENTITY.model_dump(), name: value})
    assert other.store_id != IDENTITY.store_id


def test_a_nested_field_of_the_recipe_changes_the_store_id() -> None:
    other = IDENTITY.model_copy(update={"recipe": {"kind": "plain", "specials": {"keep": False}}})
    assert other.store_id != IDENTITY.store_id


@pytest.mark.parametrize("name", ArtifactSpec.model_fields)
def test_every_field_of_an_artifact_changes_its_key(name: str) -> None:
    value = (
        {**SPEC.code, "permafrost.stages.fit:loss": "1"}
        if name == "code"
        else _changed(getattr(SPEC, name))
    )
    other = ArtifactSpec.model_validate({**SPEC.model_dump(), name: value})
    assert other.ref != SPEC.ref
    assert other.ref.key != SPEC.ref.key


def test_the_order_of_inputs_changes_the_key() -> None:
    other = SPEC.model_copy(update={"inputs": SPEC.inputs[::-1]})
    assert other.ref != SPEC.ref


def test_another_identity_is_refused_with_every_differing_field_and_both_values() -> None:
    wanted = IDENTITY.model_copy(
        update={"max_length": 512, "recipe": {"kind": "plain", "specials": {"keep": False}}}
    )
    with pytest.raises(IdentityMismatchError) as caught:
        require_same(IDENTITY, wanted, "home/features/x")
    message = str(caught.value)
    assert "max_length: store has 32, requested is 512" in message
    assert "recipe.specials.keep: store has True, requested is False" in message
    assert "home/features/x" in message
    assert "compute_dtype" not in message


def test_the_same_identity_is_accepted() -> None:
    require_same(IDENTITY, IDENTITY.model_copy(), "anywhere")
    assert IDENTITY.model_copy().store_id == IDENTITY.store_id


if __name__ == "__main__":
    regenerate()


def test_the_digest_of_definitions_is_that_of_the_mapping_in_any_order() -> None:
    code = {"m:a": "1" * 32, "m:b": "2" * 32}
    assert definitions_digest(code) == digest(code)
    assert definitions_digest(dict(reversed(code.items()))) == digest(code)
    assert definitions_digest(code | {"m:b": "3" * 32}) == digest(code | {"m:b": "3" * 32})
