"""PromptBERT: the prompt's words, and a span that is the mask alone."""

import pytest
from pydantic import ValidationError

from permafrost.stages.extraction.recipes import (
    PromptBertRecipe,
    TemplateRecipe,
    encode,
    parse_recipe,
    resolve_recipe,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.recipes.test_recipe_parsing import sizes_of
from tests.stages.extraction.tiny_models import TEXTS, byte_tokenizer, word_tokenizer


def masked_tokenizer():
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    return tokenizer


@pytest.mark.parametrize(
    "template",
    ['This sentence : "{text}" means {mask} .', "the {mask} is {text} !", "{text} {mask}"],
)
@pytest.mark.parametrize("text", [*TEXTS, "snow [MASK] melts"])
def test_the_span_is_the_templates_mask(template: str, text: str) -> None:
    tokenizer = masked_tokenizer()
    batch = encode(PromptBertRecipe(template=template), tokenizer, [text], 100)
    ids, span = batch.token_ids[0], batch.span[0]
    words = template.replace("{mask}", "[MASK]")
    assert ids.tolist() == tokenizer(words.replace("{text}", text))["input_ids"]
    assert ids[span].tolist() == [tokenizer.mask_token_id]
    # Without the mask, what is before it says where it is.
    before = template.partition("{mask}")[0].replace("{text}", text)
    assert span.argmax() == len(tokenizer(before)["input_ids"]) - 1
    own = ids[batch.span_start[0] : batch.span_end[0]].tolist()
    assert own == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_long_text_is_cut_and_the_mask_stays() -> None:
    tokenizer = masked_tokenizer()
    template = 'This sentence : "{text}" means {mask} .'
    cut, whole = (encode(PromptBertRecipe(), tokenizer, ["snow " * n + "ice"], 16) for n in (40, 1))
    assert cut.truncated.tolist() == [True]
    assert len(cut.token_ids[0]) == 16
    for batch in (cut, whole):
        assert batch.token_ids[0][batch.span[0]].tolist() == [tokenizer.mask_token_id]
    other = TemplateRecipe(template=template.replace("{mask}", "[MASK]"))
    assert (
        cut.token_ids[0].tolist()
        == encode(other, tokenizer, ["snow " * 40 + "ice"], 16).token_ids[0].tolist()
    )


def test_decoders_and_tokenizers_without_a_mask_are_refused() -> None:
    with pytest.raises(InputError, match="a mask, which decoders are not trained on"):
        resolve_recipe(PromptBertRecipe(), sizes_of(3))
    assert resolve_recipe(PromptBertRecipe(), sizes_of(3, is_decoder=False)).readout == "first"
    with pytest.raises(InputError, match="puts a mask into its prompt, but the tokenizer"):
        encode(PromptBertRecipe(), byte_tokenizer(adds_bos=False), ["ice"], 50)
    with pytest.raises(InputError, match=r"contains \{mask\} 0 times"):
        parse_recipe("prompt_bert:template=the {text}")


def test_an_instruction_has_no_mask() -> None:
    with pytest.raises(ValidationError, match="the only slot of an instruction is"):
        PromptBertRecipe(instruction="Fill in the {mask}. {text}")
