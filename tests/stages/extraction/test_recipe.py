"""Recipes, tokenisation, truncation and spans."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import normalizers

from stages.extraction.backbone import BackboneFiles, load_tokenizer, read_sizes
from stages.extraction.recipe import (
    Encoded,
    PlainRecipe,
    TemplateRecipe,
    definite_readout,
    encode,
    parse_recipe,
    resolve_recipe,
)
from storage.errors import InputError
from tests.stages.extraction.tiny_models import TEXTS, byte_tokenizer, word_tokenizer

Files = Callable[[str], BackboneFiles]


def template(text: str) -> TemplateRecipe:
    return TemplateRecipe(template=text)


def rows(batch: Encoded) -> list[list[int]]:
    return [ids.tolist() for ids in batch.token_ids]


def test_recipes_are_read_from_text() -> None:
    assert parse_recipe("plain") == PlainRecipe()
    assert parse_recipe("plain:specials=exclude,readout=last") == PlainRecipe(
        specials="exclude", readout="last"
    )


def test_a_template_may_hold_commas_colons_and_equals_signs() -> None:
    prompt = 'a=b, so: "{text}", which means'
    assert parse_recipe(f"template:readout=first,template={prompt}") == TemplateRecipe(
        template=prompt, readout="first"
    )
    assert parse_recipe(f"template:template={prompt},readout=first").template == prompt  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt", "there is no recipe 'prompt'; there are plain, template"),
        ("", "there is no recipe ''"),
        ("plain:special=include", "'special' .* is no option; plain has specials, readout"),
        ("plain:exclude", "'exclude' .* is no option"),
        ("plain:readout=last,readout=first", "'readout' .* is given twice"),
        ("plain:specials=none", "specials: Input should be 'include' or 'exclude'"),
        ("template", "template: Field required"),
        ("template:template=no slot", "contains {text} 0 times"),
        ("template:template={text} {text}", "contains {text} 2 times"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_exists(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_recipe(text)


def test_a_recipe_takes_no_fields_of_another_kind() -> None:
    with pytest.raises(ValidationError, match="template"):
        PlainRecipe.model_validate({"kind": "plain", "template": "{text}"})


def test_an_automatic_readout_becomes_definite(tiny_files: Files) -> None:
    encoder, decoder = read_sizes(tiny_files("bert")), read_sizes(tiny_files("llama"))
    assert definite_readout(resolve_recipe(PlainRecipe(), encoder)) == "first"
    assert definite_readout(resolve_recipe(PlainRecipe(), decoder)) == "last"
    assert resolve_recipe(PlainRecipe(readout="last"), encoder).readout == "last"
    assert resolve_recipe(template("x {text}"), decoder) == TemplateRecipe(
        template="x {text}", readout="last"
    )


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2", "llama"])
def test_plain_tokens_are_those_of_the_tokenizer(tiny_files: Files, model_type: str) -> None:
    tokenizer = load_tokenizer(tiny_files(model_type))
    batch = encode(PlainRecipe(), tokenizer, TEXTS, 200)
    assert rows(batch) == tokenizer(list(TEXTS), verbose=False)["input_ids"]
    assert batch.token_ids.data.dtype == np.int32
    assert not batch.truncated.any()


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


def test_a_template_is_filled_and_only_the_text_is_in_the_span() -> None:
    tokenizer = word_tokenizer()
    recipe = template("the lake of {text} never melts")
    batch = encode(recipe, tokenizer, ["snow ice"], 60)
    assert rows(batch) == tokenizer(["the lake of snow ice never melts"])["input_ids"]
    assert (int(batch.span_start[0]), int(batch.span_end[0])) == (4, 6)
    assert batch.span.data.tolist() == [False] * 4 + [True] * 2 + [False] * 3


def test_a_template_keeps_its_words_when_the_text_is_cut() -> None:
    tokenizer = word_tokenizer()
    batch = encode(template("the {text} melts"), tokenizer, ["snow ice frost lake", "snow"], 6)
    cut, short = ("the snow ice melts", "the snow melts")
    assert rows(batch) == tokenizer([cut, short])["input_ids"]
    assert batch.truncated.tolist() == [True, False]
    assert [s.tolist() for s in batch.span] == [
        [False, False, True, True, False, False],
        [False, False, True, False, False],
    ]


def test_a_cut_template_is_the_template_of_a_shorter_text() -> None:
    # The tokenizer merges '."' into one token, so cutting tokens would lose the closing quote.
    tokenizer = byte_tokenizer(adds_bos=True)
    text = "the ice. the ice. über ❄ ice."
    for max_length in range(14, 40):
        batch = encode(template('a "{text}"'), tokenizer, [text], max_length)
        prefixes = [tokenizer(f'a "{text[:n]}"')["input_ids"] for n in range(1, len(text) + 1)]
        assert rows(batch)[0] in prefixes
        assert len(rows(batch)[0]) <= max_length
        assert bool(batch.truncated[0]) == (rows(batch)[0] != prefixes[-1])
        # Nearly all of the room is used: what the merge and one character's bytes can waste is small.
        if batch.truncated[0]:
            assert len(rows(batch)[0]) > max_length - 5


def test_a_token_shared_by_text_and_prompt_is_the_texts() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    batch = encode(template('"{text}"'), tokenizer, ["ice."], 20)
    tokens = tokenizer.convert_ids_to_tokens(rows(batch)[0])
    assert tokens == ["<s>", '"', "ice", '."']
    assert batch.span.data.tolist() == [False, False, True, True]


@pytest.mark.parametrize("recipe", [PlainRecipe(), template("the {text}")])
@pytest.mark.parametrize("empty", ["", " \n\t"])
def test_an_empty_text_is_refused_with_its_number(
    recipe: PlainRecipe | TemplateRecipe, empty: str
) -> None:
    with pytest.raises(InputError, match=r"text 1 is .* remove empty texts"):
        encode(recipe, word_tokenizer(), ["ice", empty], 20)


@pytest.mark.parametrize("recipe", [PlainRecipe(), template("the {text} melts")])
def test_a_text_without_tokens_of_its_own_is_refused(recipe: PlainRecipe | TemplateRecipe) -> None:
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("zero", "")
    with pytest.raises(InputError, match=r"text 1 .* gives no token of its own"):
        encode(recipe, tokenizer, ["ice", "zero"], 20)


def test_a_text_that_is_no_valid_unicode_is_refused() -> None:
    with pytest.raises(InputError, match="text 1 holds half of a surrogate pair"):
        encode(PlainRecipe(), word_tokenizer(), ["ice", "snow \ud83d"], 20)


def test_a_length_that_leaves_no_room_for_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_length is 2, .* gets 2 special tokens"):
        encode(PlainRecipe(), word_tokenizer(), ["snow ice"], 2)
    with pytest.raises(InputError, match=r"max_length is 4, but the template .* takes 4 tokens"):
        encode(template("the {text} melts"), word_tokenizer(), ["snow"], 4)
