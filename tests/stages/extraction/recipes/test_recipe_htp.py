"""Hierarchical token prepending: layout, sources, spans and cutting."""

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes import (
    OPENING,
    PLACEHOLDER,
    Encoded,
    HtpRecipe,
    TokenPrependingRecipe,
    encode,
    sentence_starts,
)
from permafrost.storage.errors import InputError
from tests.stages.extraction.recipes.decoded import said
from tests.stages.extraction.tiny_models import byte_tokenizer, word_tokenizer

SENTENCES = (
    "The ice melts.",
    "Snow was cold under the lake.",
    "Is the river frozen?",
    "A warm wind never freezes!",
)
"""Such that each is one sentence, alone and in any company."""
TOKENIZERS = {
    "words": word_tokenizer(),
    "bytes": byte_tokenizer(adds_bos=True),
    "bytes without <s>": byte_tokenizer(adds_bos=False),
}
documents = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=6)
tokenizers = st.sampled_from(list(TOKENIZERS.values()))


def copies_of(batch: Encoded) -> list[list[int]]:
    assert batch.copies is not None
    return batch.copies[0].tolist()


def reference(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], size: int, placement: str
) -> tuple[list[int], set[tuple[int, int]]]:
    """Ids and copies, put together sentence by sentence."""
    ids = tokenizer("")["input_ids"]
    head, tail = ids[:1], ids[1:]
    pieces = [
        tokenizer(" " * (i > 0) + s, add_special_tokens=False)["input_ids"]
        for i, s in enumerate(sentences)
    ]
    blocks = [list(chain(*pieces[i : i + size])) for i in range(0, len(pieces), size)]
    out = head + [OPENING] * (len(blocks) if placement != "local" else 0)
    copies: set[tuple[int, int]] = set()
    for m, block in enumerate(blocks):
        if placement != "global":
            out.append(PLACEHOLDER)
            copies.add((len(out) - 1 + len(block), len(out) - 1))
        out += block
        if placement != "local":
            copies.add((len(out) - 1, len(head) + m))
    return out + tail, copies


@given(
    sentences=documents,
    tokenizer=tokenizers,
    size=st.integers(1, 7),
    placement=st.sampled_from(["both", "local", "global"]),
)
def test_the_layout_is_the_one_put_together_by_hand(
    sentences: list[str], tokenizer: PreTrainedTokenizerBase, size: int, placement: str
) -> None:
    """Relation 25, and 24 for tokens."""
    text = " ".join(sentences)
    recipe = HtpRecipe(size=size, placement=placement)  # type: ignore[arg-type]
    batch = encode(recipe, tokenizer, [text], 500)
    ids, copies = reference(tokenizer, sentences, size, placement)
    assert batch.token_ids[0].tolist() == ids
    assert {(s, t) for s, t in copies_of(batch)} == copies
    assert len(copies_of(batch)) == len(copies)
    n_blocks = math.ceil(len(sentences) / size)
    n_plain = len(tokenizer(text)["input_ids"])
    assert len(ids) == n_plain + n_blocks * (2 if placement == "both" else 1)
    assert not batch.truncated[0]


@given(sentences=documents, tokenizer=tokenizers, include=st.sampled_from(["exclude", "include"]))
def test_the_span_is_the_texts_own_tokens(
    sentences: list[str], tokenizer: PreTrainedTokenizerBase, include: str
) -> None:
    text = " ".join(sentences)
    recipe = HtpRecipe(template="Find a lake. Text:{text} ;", span_placeholders=include)  # type: ignore[arg-type]
    batch = encode(recipe, tokenizer, [text], 500)
    ids, span = batch.token_ids[0], batch.span[0]
    own = tokenizer(text, add_special_tokens=False)["input_ids"]
    pooled = ids[span].tolist()
    assert [i for i in pooled if i != PLACEHOLDER] == own
    assert pooled.count(PLACEHOLDER) == (len(sentences) if include == "include" else 0)
    region = ids[batch.span_start[0] : batch.span_end[0]].tolist()
    assert region[0] == PLACEHOLDER
    assert [i for i in region if i != PLACEHOLDER] == own
    assert ids[batch.span_start[0] - 1] == OPENING


def test_a_longer_instruction_does_not_change_the_span() -> None:
    """Relation 29."""
    text = " ".join(SENTENCES)
    counts = {
        int(encode(HtpRecipe(template=f"{words}{{text}}"), t, [text], 500).span.data.sum())
        for words in ("", "the ", "the lake of: ", "a warm wind , the lake of: ")
        for t in (TOKENIZERS["words"],)
    }
    assert counts == {len(TOKENIZERS["words"](text, add_special_tokens=False)["input_ids"])}


def test_instruction_and_what_follows_stay_outside() -> None:
    tokenizer = word_tokenizer()
    recipe = HtpRecipe(template="the lake {text} !", size=1)
    batch = encode(recipe, tokenizer, [" ".join(SENTENCES[:2])], 60)
    ids = batch.token_ids[0].tolist()
    assert ids[:3] == tokenizer("the lake")["input_ids"][:3]
    assert ids[3:6] == [OPENING, OPENING, PLACEHOLDER]
    assert ids[-2:] == tokenizer("!")["input_ids"][1:]
    assert not batch.span[0][:6].any()
    assert not batch.span[0][-2:].any()


@given(sentences=documents, tokenizer=tokenizers, more=st.integers(0, 40))
def test_blocks_longer_than_the_document_are_all_the_same(
    sentences: list[str], tokenizer: PreTrainedTokenizerBase, more: int
) -> None:
    """Relation 27."""
    text = [" ".join(sentences)]
    exact = encode(HtpRecipe(size=len(sentences)), tokenizer, text, 500)
    larger = encode(HtpRecipe(size=len(sentences) + more), tokenizer, text, 500)
    assert larger.token_ids[0].tolist() == exact.token_ids[0].tolist()
    assert larger.span[0].tolist() == exact.span[0].tolist()
    assert copies_of(larger) == copies_of(exact)


@pytest.mark.parametrize("placement", ["local", "global"])
def test_one_block_with_one_placeholder_is_token_prepending(placement: str) -> None:
    """Relation 26, for tokens; a global placeholder only has another name."""
    for tokenizer in TOKENIZERS.values():
        text = [" ".join(SENTENCES)]
        htp = encode(HtpRecipe(size=4, placement=placement), tokenizer, text, 500)  # type: ignore[arg-type]
        prepending = TokenPrependingRecipe(template="{placeholder}{text}", source="text_end")
        expected = encode(prepending, tokenizer, text, 500)
        ids = np.where(htp.token_ids[0] == OPENING, PLACEHOLDER, htp.token_ids[0])
        assert ids.tolist() == expected.token_ids[0].tolist()
        assert htp.span[0].tolist() == expected.span[0].tolist()
        assert copies_of(htp) == copies_of(expected)


@given(sentences=documents, tokenizer=tokenizers)
def test_token_blocks_of_a_mean_sentence_are_at_least_as_many(
    sentences: list[str], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Relation 34."""
    text = " ".join(sentences)
    n_tokens = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    size = n_tokens // len(sentences)
    batch = encode(HtpRecipe(block="tokens", size=size), tokenizer, [text], 500)
    n_placeholders = int((batch.token_ids.data == PLACEHOLDER).sum())
    assert n_placeholders == math.ceil(n_tokens / size) >= len(sentences)


def test_blocks_of_tokens_have_that_many() -> None:
    recipe = HtpRecipe(block="tokens", size=2)
    batch = encode(recipe, word_tokenizer(), ["the snow ice frost lake"], 60)
    o, p = OPENING, PLACEHOLDER
    the, snow, ice, frost, lake = word_tokenizer()("the snow ice frost lake")["input_ids"][1:-1]
    assert batch.token_ids[0].tolist() == [0, o, o, o, p, the, snow, p, ice, frost, p, lake, 2]
    assert sorted(copies_of(batch)) == [[6, 1], [6, 4], [9, 2], [9, 7], [11, 3], [11, 10]]
    assert (int(batch.span_start[0]), int(batch.span_end[0])) == (4, 12)


@given(sentences=documents, tokenizer=tokenizers)
def test_blocks_of_a_mean_sentence_are_of_each_text_by_itself(
    sentences: list[str], tokenizer: PreTrainedTokenizerBase
) -> None:
    """HTP's figure 8: N = floor(tokens / sentences) of the document."""
    recipe = HtpRecipe(block="tokens", size="per_sentence")
    texts = [" ".join(sentences), " ".join([*sentences, *SENTENCES])]
    together = encode(recipe, tokenizer, texts, 500)
    for i, n_sentences in enumerate((len(sentences), len(sentences) + len(SENTENCES))):
        n_tokens = len(tokenizer(texts[i], add_special_tokens=False)["input_ids"])
        named = HtpRecipe(block="tokens", size=n_tokens // n_sentences)
        alone = encode(named, tokenizer, texts[i : i + 1], 500)
        assert together.token_ids[i].tolist() == alone.token_ids[0].tolist()


def test_a_mean_sentence_is_of_what_is_kept_and_of_tokens() -> None:
    recipe, tokenizer = HtpRecipe(block="tokens", size="per_sentence"), TOKENIZERS["bytes"]
    cut = encode(recipe, tokenizer, [" ".join(SENTENCES)], 60)
    kept = said(tokenizer, cut.token_ids[0])
    assert cut.truncated[0]
    assert len(cut.token_ids[0]) <= 60
    again = encode(recipe, tokenizer, [kept], 500)
    assert cut.token_ids[0].tolist() == again.token_ids[0].tolist()
    with pytest.raises(ValueError, match="write block: tokens"):
        HtpRecipe(size="per_sentence")


def test_a_mean_over_everything_leaves_no_placeholder_out() -> None:
    """HTP, section 4.4; the span begins with the global placeholders and ends with the text."""
    recipe = HtpRecipe(template="Find a lake. Text:{text} ;", span_placeholders="all")
    for tokenizer in TOKENIZERS.values():
        batch = encode(recipe, tokenizer, [" ".join(SENTENCES)], 500)
        ids, span = batch.token_ids[0], batch.span[0]
        pooled = np.flatnonzero(span)
        assert span[ids < 0].all()
        assert pooled[0] == np.flatnonzero(ids == OPENING)[0]
        assert pooled[-1] == batch.span_end[0] - 1
        assert len(pooled) == pooled[-1] - pooled[0] + 1


def test_the_last_source_may_be_the_token_behind_the_text() -> None:
    for template, moved in (("{text} !", 1), ("{text}", 0)):
        text, after = (
            encode(
                HtpRecipe(template=template, last_source=s),
                TOKENIZERS["bytes"],
                ["The a. The."],
                60,
            )
            for s in ("text_end", "after_text")
        )
        assert text.token_ids[0].tolist() == after.token_ids[0].tolist()
        end = int(text.span_end[0])
        assert max(s for s, _ in copies_of(text)) == end - 1
        expected = [[s + moved * (s == end - 1), t] for s, t in copies_of(text)]
        assert copies_of(after) == expected


@given(
    sentences=documents,
    tokenizer=tokenizers,
    size=st.integers(1, 3),
    max_length=st.integers(8, 80),
    block=st.sampled_from(["sentences", "tokens"]),
)
def test_a_cut_input_is_that_of_a_shorter_text_and_fits(
    sentences: list[str],
    tokenizer: PreTrainedTokenizerBase,
    size: int,
    max_length: int,
    block: str,
) -> None:
    """Relation 25 after truncation."""
    text = " ".join(sentences)
    recipe = HtpRecipe(size=size, block=block)  # type: ignore[arg-type]
    batch = encode(recipe, tokenizer, [text], max_length)
    ids = batch.token_ids[0]
    assert len(ids) <= max_length
    assert (ids == OPENING).sum() == (ids == PLACEHOLDER).sum() == len(copies_of(batch)) / 2
    kept = said(tokenizer, ids)
    if tokenizer is not TOKENIZERS["words"]:
        # A word tokenizer's decoder puts spaces elsewhere.
        assert text.startswith(kept)
        assert bool(batch.truncated[0]) == (kept != text)
        again = encode(recipe, tokenizer, [kept], 500)
        assert ids.tolist() == again.token_ids[0].tolist()
        assert copies_of(batch) == copies_of(again)
    if batch.truncated[0]:
        whole = encode(recipe, tokenizer, [text], 500).token_ids[0]
        assert len(whole) > max_length
        # One more token may need two placeholders; a merged token that falls apart a little more.
        assert len(ids) >= max_length - 4


def test_placeholders_without_room_for_text_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"max_length is 4, .* takes 4 tokens, placeholders included, which leaves"
    ):
        encode(HtpRecipe(), word_tokenizer(), ["ice"], 4)
    assert encode(HtpRecipe(), word_tokenizer(), ["ice"], 5).token_ids[0].tolist()[1:3] == [-2, -1]


@pytest.mark.parametrize("text", ["...", "! ? .", "ice", "\ufeffThe ice. The lake.", "  The ice. "])
def test_unusual_texts_have_blocks_too(text: str) -> None:
    for tokenizer in TOKENIZERS.values():
        batch = encode(HtpRecipe(), tokenizer, [text], 60)
        ids = batch.token_ids[0]
        assert (ids == PLACEHOLDER).sum() == (2 if "lake" in text else 1)
        assert ids[ids >= 0].tolist() == tokenizer(text)["input_ids"]
        assert ids[batch.span_start[0]] == PLACEHOLDER


def test_a_sentence_without_tokens_has_no_placeholder() -> None:
    # This tokenizer drops the second sentence.
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("Zero one zero.", "")
    text = "The ice melts. Zero one zero. Snow was cold."
    assert len(sentence_starts(text)) == 3
    ids = encode(HtpRecipe(), tokenizer, [text], 60).token_ids[0]
    assert (ids == PLACEHOLDER).sum() == (ids == OPENING).sum() == 2


def test_sentences_begin_where_their_first_character_stands() -> None:
    text = " The ice melts.  Snow was “cold” — so ❄! A lake melts"
    assert [text[i:].split()[0] for i in sentence_starts(text)] == ["The", "Snow", "A"]
