"""The text as it is: tokens, truncation and span; and what no recipe can read."""

from collections.abc import Callable

import numpy as np
import pytest
from tokenizers import normalizers

from permafrost.stages.extraction.backbone import BackboneFiles, load_tokenizer
from permafrost.stages.extraction.recipes import (
    Encoded,
    HtpRecipe,
    PlainRecipe,
    Recipe,
    TemplateRecipe,
    TokenPrependingRecipe,
    encode,
    parse_recipe,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import TEXTS, byte_tokenizer, word_tokenizer

Files = Callable[[str], BackboneFiles]

RECIPES: list[Recipe] = [
    PlainRecipe(),
    PlainRecipe(bos="omit"),
    TemplateRecipe(template="the {text} melts"),
    TokenPrependingRecipe(template="the {placeholder}{text} melts"),
    HtpRecipe(),
]


def rows(batch: Encoded) -> list[list[int]]:
    return [ids.tolist() for ids in batch.token_ids]


@pytest.mark.parametrize("model_type", ["bert", "roberta", "mpnet", "gpt2", "llama"])
def test_plain_tokens_are_those_of_the_tokenizer(tiny_files: Files, model_type: str) -> None:
    tokenizer = load_tokenizer(tiny_files(model_type))
    batch = encode(PlainRecipe(), tokenizer, TEXTS, 200)
    assert rows(batch) == tokenizer(list(TEXTS), verbose=False)["input_ids"]
    assert batch.token_ids.data.dtype == np.int32
    assert not batch.truncated.any()
    assert batch.copies is None
    assert batch.auxiliary is None


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama"])
def test_plain_truncation_is_that_of_the_tokenizer(tiny_files: Files, model_type: str) -> None:
    tokenizer = load_tokenizer(tiny_files(model_type))
    expected = load_tokenizer(tiny_files(model_type))(list(TEXTS), truncation=True, max_length=9)
    whole, batch = (encode(PlainRecipe(), tokenizer, TEXTS, n) for n in (200, 9))
    assert rows(batch) == expected["input_ids"]
    assert batch.truncated.tolist() == (whole.token_ids.lengths > 9).tolist()
    assert batch.truncated.any()
    assert not batch.truncated.all()


def test_special_tokens_are_in_the_span_unless_excluded() -> None:
    tokenizer = word_tokenizer()
    include, exclude = (
        encode(PlainRecipe(specials=s), tokenizer, ["snow melts slowly", "ice"], 4)
        for s in ("include", "exclude")
    )
    assert include.span.data.all()
    assert [s.tolist() for s in exclude.span] == [[False, True, True, False], [False, True, False]]
    for batch in (include, exclude):
        assert batch.span_start.tolist() == [1, 1]
        assert batch.span_end.tolist() == [3, 2]
        assert batch.truncated.tolist() == [True, False]


def test_a_special_token_written_out_in_a_text_is_the_texts_own() -> None:
    batch = encode(PlainRecipe(specials="exclude"), word_tokenizer(), ["ice </s> snow"], 10)
    assert batch.span.data.tolist() == [False, True, True, True, False]


def test_only_the_leading_special_token_is_omitted() -> None:
    tokenizer = word_tokenizer()
    whole = tokenizer(["snow ice", "ice"])["input_ids"]
    for specials, last in (("include", True), ("exclude", False)):
        recipe = parse_recipe(f"plain:bos=omit,specials={specials}")
        batch = encode(recipe, tokenizer, ["snow ice", "ice"], 3)
        assert rows(batch) == [ids[1:] for ids in whole]
        assert [s.tolist() for s in batch.span] == [[True, True, last], [True, last]]
        assert batch.span_start.tolist() == [0, 0]
        assert batch.span_end.tolist() == [2, 1]
        assert not batch.truncated.any()


def test_nothing_is_omitted_where_the_tokenizer_adds_nothing() -> None:
    for text in ("ice the", "<s>ice"):
        with_bos, without = byte_tokenizer(adds_bos=True), byte_tokenizer(adds_bos=False)
        expected = without([text])["input_ids"]
        assert rows(encode(PlainRecipe(bos="omit"), without, [text], 20)) == expected
        assert rows(encode(PlainRecipe(bos="omit"), with_bos, [text], 20)) == expected


def test_a_text_of_one_token_or_of_marks_alone_is_a_text() -> None:
    for recipe in RECIPES:
        batch = encode(recipe, word_tokenizer(), ["ice", "! . ?"], 20)
        assert (batch.span_end > batch.span_start).all()
        assert all(span.any() for span in batch.span)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
@pytest.mark.parametrize("empty", ["", " \n\t"])
@pytest.mark.parametrize("normalise", ["none", "sentence"])
def test_an_empty_text_is_refused_with_its_number(
    recipe: Recipe, empty: str, normalise: str
) -> None:
    recipe = recipe.model_copy(update={"normalise": normalise})
    with pytest.raises(InputError, match=r"text 1 is .* remove empty texts"):
        encode(recipe, word_tokenizer(), ["ice", empty], 20)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
def test_a_text_without_tokens_of_its_own_is_refused(recipe: Recipe) -> None:
    for tokenizer in (word_tokenizer(), byte_tokenizer(adds_bos=False)):
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace("zero", "")
        with pytest.raises(InputError, match=r"text 1 .* gives no token of its own"):
            encode(recipe, tokenizer, ["ice", "zero"], 20)


def test_a_text_that_is_no_valid_unicode_is_refused() -> None:
    with pytest.raises(InputError, match="text 1 holds half of a surrogate pair"):
        encode(PlainRecipe(), word_tokenizer(), ["ice", "snow \ud83d"], 20)


def test_a_length_that_leaves_no_room_for_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_length is 2, .* gets 2 special tokens"):
        encode(PlainRecipe(), word_tokenizer(), ["snow ice"], 2)
    with pytest.raises(InputError, match=r"max_length is 1, .* gets 1 special tokens"):
        encode(PlainRecipe(bos="omit"), word_tokenizer(), ["snow ice"], 1)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_an_end_token_is_added_where_the_tokenizer_adds_none(adds_bos: bool) -> None:
    tokenizer = byte_tokenizer(adds_bos=adds_bos)
    eos = tokenizer.eos_token_id
    plain, ended = (
        encode(PlainRecipe(end=end), tokenizer, TEXTS, 200) for end in ("tokenizer", "added")
    )
    assert rows(ended) == [[*ids, eos] for ids in rows(plain)]
    assert np.array_equal(ended.span_start, plain.span_start)
    assert np.array_equal(ended.span_end, plain.span_end), "it is not of the text itself"
    assert all(span.all() for span in ended.span)
    bare = encode(PlainRecipe(end="added", specials="exclude"), tokenizer, TEXTS, 200)
    assert not any(span[-1] for span in bare.span)
    cut = encode(PlainRecipe(end="added"), tokenizer, TEXTS, 8)
    assert rows(cut) == [ids if len(ids) <= 8 else [*ids[:7], eos] for ids in rows(ended)], (
        "it is never cut"
    )


def test_no_second_end_token_is_added_and_none_that_there_is_not() -> None:
    tokenizer = word_tokenizer()
    plain, ended = (
        encode(PlainRecipe(end=end), tokenizer, TEXTS, 60) for end in ("tokenizer", "added")
    )
    assert rows(plain) == rows(ended)
    assert "end" not in PlainRecipe().model_dump(), "stores keep their ids"
    assert tokenizer.sep_token, "it ends a text with this one"
    tokenizer.eos_token = None
    assert rows(encode(PlainRecipe(end="added"), tokenizer, TEXTS, 60)) == rows(plain)
    bare = byte_tokenizer(adds_bos=True)
    bare.eos_token = None
    with pytest.raises(InputError, match=r"names none \(eos_token\)"):
        encode(PlainRecipe(end="added"), bare, TEXTS, 60)


def test_a_beginning_of_text_token_is_added_where_the_tokenizer_adds_none() -> None:
    bare, with_bos = byte_tokenizer(adds_bos=False), byte_tokenizer(adds_bos=True)
    bos, recipe = bare.bos_token_id, PlainRecipe(bos="added")
    plain, begun = (encode(PlainRecipe(bos=b), bare, TEXTS, 200) for b in ("tokenizer", "added"))
    assert rows(begun) == [[bos, *ids] for ids in rows(plain)]
    assert np.array_equal(begun.span_start, plain.span_start + 1)
    assert np.array_equal(begun.span_end, plain.span_end + 1)
    assert rows(encode(recipe, with_bos, TEXTS, 200)) == rows(begun), "and no second one"
    words = PlainRecipe(bos="added", specials="exclude")
    assert not any(span[0] for span in encode(words, bare, TEXTS, 200).span)
    cut = encode(recipe, bare, TEXTS, 8)
    assert rows(cut) == [ids[:8] for ids in rows(begun)]
    asked = PlainRecipe(bos="added", instruction="say {text}")
    told = PlainRecipe(instruction="say {text}")
    one, other = (encode(r, bare, TEXTS, 200) for r in (asked, told))
    assert np.array_equal(one.span_start, other.span_start + 1)
    assert "bos" not in PlainRecipe().model_dump(), "stores keep their ids"
    nameless = byte_tokenizer(adds_bos=False)
    nameless.bos_token = None
    with pytest.raises(InputError, match=r"names none \(bos_token\)"):
        encode(recipe, nameless, TEXTS, 60)
