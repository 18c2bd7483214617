"""Spans of all recipes: exactly the text's tokens, with every kind of tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes import Recipe, encode, parse_recipe
from tests.stages.extraction.recipes.decoded import said
from tests.stages.extraction.tiny_models import TEXTS, byte_tokenizer, word_tokenizer

WORDS = word_tokenizer()
BYTES = (byte_tokenizer(adds_bos=True), byte_tokenizer(adds_bos=False))
RECIPES: dict[str, tuple[Recipe, str]] = {
    text: (parse_recipe(text), filled)
    for text, filled in {
        "plain:specials=exclude": "{}",
        "plain:specials=exclude,bos=omit": "{}",
        "plain:specials=exclude,instruction=find the lake: {text}": "find the lake: {}",
        "plain:specials=exclude,bos=omit,instruction=find: {text} !": "find: {} !",
        "template:template=the lake: {text} !": "the lake: {} !",
        "template:template=the lake: {text} !,instruction=find {text} .": "find the lake: {} ! .",
        "prompt_eol": 'This sentence : "{}" means in one word:"',
        "prompt_eol:spelling=plain": "This sentence: {} means in one word:",
        "future_eol": "Forecasting the subsequent tokens {} in one word:",
        "pretended_cot": 'After thinking step by step , this sentence : "{}" means in one word:"',
        "contrastive": 'This sentence : "{}" means in one word:"',
        "contrastive:instruction=find {text} .": 'find This sentence : "{}" means in one word:" .',
        "echo:template=the {first} , {text} !": "the {} , {} !",
        "echo:template={first} {text},instruction=find Text: {text}": "find Text: {} {}",
        "token_prepending": 'This sentence : "{}" means in one word:"',
        "token_prepending:instruction=find {text}": 'find This sentence : "{}" means in one word:"',
        "htp": "{}",
        "htp:instruction=find the lake. {text}": "find the lake. {}",
        "htp:size=2,placement=local,template=Find: {text}": "Find: {}",
        "htp:block=tokens,size=3,placement=global,template={text} !": "{} !",
        "htp:template={text} !,instruction=find Text: {text} .": "find Text: {} ! .",
    }.items()
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_span_is_the_texts_tokens_of_a_word_tokenizer(name: str) -> None:
    recipe, filled = RECIPES[name]
    batch = encode(recipe, WORDS, TEXTS, 200)
    for i, text in enumerate(TEXTS):
        ids, span = batch.token_ids[i], batch.span[i]
        assert ids[span].tolist() == WORDS(text, add_special_tokens=False)["input_ids"]
        whole = WORDS(filled.replace("{}", text))["input_ids"]
        assert ids[ids >= 0].tolist() == (whole[1:] if "bos=omit" in name else whole)
        inside = ids[batch.span_start[i] : batch.span_end[i]]
        assert inside[inside >= 0].tolist() == ids[span].tolist()


@given(
    name=st.sampled_from(list(RECIPES)),
    tokenizer=st.sampled_from(BYTES),
    # No full stop, which may merge with a prompt's quote, and no space at the ends, which may merge
    # with its words.
    text=st.text("the icA,!❄ü", min_size=1, max_size=30).filter(lambda t: t == t.strip() != ""),
)
def test_a_span_says_the_text_in_bytes(
    name: str, tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    recipe, filled = RECIPES[name]
    batch = encode(recipe, tokenizer, [text], 300)
    ids, span = batch.token_ids[0], batch.span[0]
    assert said(tokenizer, ids[span]).strip() == text
    whole = tokenizer(filled.replace("{}", text))["input_ids"]
    is_omitted = "bos=omit" in name and tokenizer is BYTES[0]
    assert ids[ids >= 0].tolist() == whole[is_omitted:]
    assert not batch.truncated[0]
    inside = span[batch.span_start[0] : batch.span_end[0]]
    assert inside.sum() == span.sum()


def test_copies_run_within_the_text_and_its_prompt() -> None:
    for name in ("token_prepending", "htp", "htp:placement=local", "htp:block=tokens"):
        batch = encode(parse_recipe(name), BYTES[0], TEXTS, 200)
        assert batch.copies is not None
        for ids, copies in zip(batch.token_ids, batch.copies, strict=True):
            sources, targets = copies.T
            assert (ids[sources] >= 0).all()
            assert sorted(targets.tolist()) == [j for j, t in enumerate(ids) if t < 0]
            assert (sources > targets).all()


def test_every_prompt_of_the_ensemble_keeps_its_words_out_of_the_span() -> None:
    for recipe in parse_recipe("meta_eol").members():
        batch = encode(recipe, WORDS, TEXTS, 200)
        for i, text in enumerate(TEXTS):
            expected = WORDS(text, add_special_tokens=False)["input_ids"]
            assert batch.token_ids[i][batch.span[i]].tolist() == expected
