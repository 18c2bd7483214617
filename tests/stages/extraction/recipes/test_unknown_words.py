"""A tokenizer that has no token for a word it does not know."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from permafrost.stages.extraction.recipes import encode, parse_recipe
from permafrost.stages.extraction.recipes.inputs import UnreadableTextError


@pytest.mark.parametrize("recipe", ["plain", "template:template=so {text}"])
def test_the_text_with_the_word_is_named(recipe: str) -> None:
    rust = Tokenizer(models.WordLevel({"so": 0, "ice": 1, "i": 2}, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer, plain = PreTrainedTokenizerFast(tokenizer_object=rust), parse_recipe(recipe)
    texts = ["ice"] * 300
    assert len(encode(plain, tokenizer, texts, 8)) == 300
    texts[290] = "ice and ice"
    said = r"^text 290 \('.*ice and ice'\) cannot be tokenised \(.*Missing \[UNK\] token"
    with pytest.raises(UnreadableTextError, match=said):
        encode(plain, tokenizer, texts, 8)
