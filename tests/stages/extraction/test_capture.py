"""Reading captures, and which arrays of the store they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from permafrost.stages.extraction.capture import (
    ArrayName,
    Capture,
    CaptureItem,
    deepest_block,
    parse_capture,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

DECODER = BackboneSizes(
    model_type="llama",
    n_layers=12,
    d_model=64,
    d_value=16,
    n_attn_heads=8,
    n_kv_heads=2,
    d_head=8,
    has_final_norm=True,
    is_decoder=True,
    max_positions=128,
)
ENCODER = DECODER.model_copy(
    update={"model_type": "bert", "has_final_norm": False, "is_decoder": False, "n_layers": 5}
)


def test_all_hidden_states_are_embedding_output_blocks_and_final() -> None:
    names = parse_capture("hidden=all@tokens").arrays(DECODER)
    assert names == (*(f"hidden/{k}" for k in range(13)), "hidden/final")


def test_without_a_final_norm_there_is_no_final() -> None:
    assert parse_capture("hidden=all").arrays(ENCODER) == tuple(f"hidden/{k}" for k in range(6))


def test_layers_may_be_listed_with_commas_inside_a_list_of_items() -> None:
    capture = parse_capture("hidden=final@mean, values=4-6,9@tokens,attention_rows=2")
    assert capture.arrays(DECODER) == (
        "attention_rows/2",
        "pooled/hidden_mean/final",
        "values/4",
        "values/5",
        "values/6",
        "values/9",
    )


def test_the_deep_half_starts_at_half_of_the_blocks_rounded_down() -> None:
    assert parse_capture("values=half").arrays(DECODER)[0] == "values/6"
    assert len(parse_capture("values=half").arrays(DECODER)) == 7
    assert parse_capture("hidden=half").arrays(ENCODER) == tuple(
        f"hidden/{k}" for k in (2, 3, 4, 5)
    )
    one = ENCODER.model_copy(update={"n_layers": 1})
    assert parse_capture("values=half").arrays(one) == ("values/1",)


def test_an_array_asked_for_twice_is_there_once() -> None:
    assert parse_capture("hidden=3,hidden=2-3").arrays(DECODER) == ("hidden/2", "hidden/3")


def test_the_same_tensor_can_be_kept_per_token_and_per_text() -> None:
    names = parse_capture("hidden=3,hidden=3@readout,hidden=3@last,values=3@mean").arrays(DECODER)
    assert names == (
        "hidden/3",
        "pooled/hidden_last/3",
        "pooled/hidden_readout/3",
        "pooled/values_mean/3",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "follows no WHAT="),
        ("all", "follows no WHAT="),
        ("hidden=1@tokens,2", "'2' in the capture .* follows no WHAT="),
        ("keys=all", "cannot capture 'keys' .* hidden, values, attention_rows"),
        ("hidden=deep", "'deep' is not a layer"),
        ("hidden=", "'' is not a layer"),
        ("hidden=-0", "'-0' is not a layer"),
        ("hidden=1@max", "'@max' .* @tokens, @readout, @mean, @sum, @last"),
        ("attention_rows=2@mean", "cannot be pooled with @mean"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_possible(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        parse_capture(text)
    assert "pydantic" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "hidden=13",
            "hidden=13 was asked for, but this llama backbone has hidden 0 to 12 and final",
        ),
        ("values=0", "values=0 was asked for, .* values 1 to 12;"),
        ("attention_rows=11-13", "attention_rows 1 to 12"),
        ("hidden=6-4", "lower end of a range first"),
        ("values=final", "values belong to blocks, 1 to 12"),
    ],
)
def test_layers_that_do_not_exist_are_refused_with_those_that_do(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_capture(text).arrays(DECODER)


def test_final_of_a_backbone_without_final_norm_names_the_layer_to_use() -> None:
    with pytest.raises(InputError, match=r"bert backbone has no norm .* write hidden=5"):
        parse_capture("hidden=final").arrays(ENCODER)


def test_blocks_may_be_counted_from_the_end() -> None:
    n = ENCODER.n_layers
    found = parse_capture("hidden=-2,-1@tokens,values=-3@mean").arrays(ENCODER)
    assert set(found) == {f"hidden/{n - 1}", f"hidden/{n}", f"pooled/values_mean/{n - 2}"}
    with pytest.raises(InputError, match=f"has {n} blocks, -{n} to -1 from the end"):
        parse_capture(f"hidden=-{n + 1}").arrays(ENCODER)


def test_an_experiment_file_may_hold_a_capture_as_text_or_taken_apart() -> None:
    class Experiment(BaseModel):
        capture: Capture

    item = CaptureItem(what="values", layers="4-6,9")
    assert Experiment.model_validate({"capture": "values=4-6, 9"}).capture == Capture(items=(item,))
    whole = {"items": [{"what": "values", "layers": "4-6,9", "at": "tokens"}]}
    assert Experiment.model_validate({"capture": whole}).capture == Capture(items=(item,))
    listed = Experiment.model_validate({"capture": ["values=4-6, 9", "hidden=1@tokens"]}).capture
    assert listed == parse_capture("values=4-6,9,hidden=1@tokens")
    with pytest.raises(ValidationError, match="cannot capture 'keys'"):
        Experiment.model_validate({"capture": "keys=all"})


@given(
    what=st.sampled_from(["hidden", "values", "attention_rows"]),
    how=st.sampled_from([None, "readout", "mean", "last"]),
    index=st.one_of(st.integers(0, 200), st.just("final")),
)
def test_a_name_taken_apart_and_put_together_is_the_same(
    what: str, how: str | None, index: int | str
) -> None:
    text = f"pooled/{what}_{how}/{index}" if how else f"{what}/{index}"
    if (index == "final" and what != "hidden") or (how and what == "attention_rows"):
        with pytest.raises(InputError, match="is not a captured array"):
            ArrayName.parse(text)
    else:
        name = ArrayName.parse(text)
        assert (name.what, name.how, name.index, name.text) == (what, how, index, text)
        assert name.axis == ("text" if how else "token")


@pytest.mark.parametrize(
    "text", ["hidden", "hidden/", "hidden/03", "hidden/-1", "token_ids", "x/1"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a captured array"):
        ArrayName.parse(text)


def test_widths_follow_the_kind_of_tensor() -> None:
    widths = {
        n: ArrayName.parse(n).width(DECODER)
        for n in ("hidden/3", "values/3", "attention_rows/3", "pooled/values_mean/3")
    }
    assert widths == {
        "hidden/3": 64,
        "values/3": 16,
        "attention_rows/3": 8,
        "pooled/values_mean/3": 16,
    }


def test_the_deepest_block_is_the_last_that_has_to_run() -> None:
    assert deepest_block(["hidden/0"], DECODER) == 0
    assert deepest_block(["hidden/2", "pooled/values_mean/5", "attention_rows/4"], DECODER) == 5
    assert deepest_block(["hidden/0", "hidden/final"], DECODER) == 12
