"""Texts that are cut in two at a drawn token."""

from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.corpus.token_cut import TokenCut
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import WORDS, byte_tokenizer, word_tokenizer

TEXT = "the deep lake freezes slowly under thin ice and snow never melts"
LONG = [" ".join(reversed(WORDS[i : i + 12])) for i in range(6)]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer whose tokens are words."""
    folder = tmp_path_factory.mktemp("words")
    word_tokenizer().save_pretrained(folder)
    return str(folder)


def test_positions_are_uniform_over_the_middle_half(words: str) -> None:
    cut = TokenCut(tokenizer=words)
    drawn = Counter[int]()
    for seed in range(1400):
        first, second = cut.halves(TEXT, seed)
        assert f"{first} {second}" == TEXT
        drawn[len(first.split())] += 1
    # 12 tokens: 3 to 9, 200 times each; the standard deviation is 13.
    assert set(drawn) == {3, 4, 5, 6, 7, 8, 9}
    assert all(140 < n < 260 for n in drawn.values())


def test_what_is_beyond_the_last_token_is_dropped_first(words: str) -> None:
    cut = TokenCut(tokenizer=words, n_tokens=4, lowest=0.5, highest=0.5)
    assert cut.halves(TEXT, 0) == ("the deep", "lake freezes")
    assert TokenCut(tokenizer=words).halves("ice", 0) == ("ice", "")


def test_an_edited_tokenizer_cuts_elsewhere(tmp_path: Path) -> None:
    word_tokenizer().save_pretrained(tmp_path)
    cut = TokenCut(tokenizer=str(tmp_path), n_tokens=4, lowest=0.5, highest=0.5)
    assert cut.halves(TEXT, 0) == ("the deep", "lake freezes")
    byte_tokenizer(adds_bos=True).save_pretrained(tmp_path)
    assert cut.halves(TEXT, 0) == ("the", "de")


def test_tokens_inside_words_are_places_too(tmp_path: Path) -> None:
    byte_tokenizer(adds_bos=True).save_pretrained(tmp_path)
    cut = TokenCut(tokenizer=str(tmp_path))
    found = {cut.halves("snowflakes", seed) for seed in range(60)}
    assert found == {("snowflakes"[:k], "snowflakes"[k:]) for k in range(3, 8)}


def test_the_tokenizers_content_is_in_the_key_and_not_its_name(words: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("\n".join(LONG) + "\n")
    source = {"kind": "files", "files": {"test": str(tmp_path / "long.txt")}}
    content = {"kind": "segments", "source": {**source, "task": {"kind": "unlabelled"}}}
    plain = CORPUS_SOURCES.validate({**content, "min_words": 2})
    assert "cut" not in plain.facts()
    word_tokenizer().save_pretrained(tmp_path / "again")
    byte_tokenizer(adds_bos=True).save_pretrained(tmp_path / "other")
    facts = [
        CORPUS_SOURCES.validate({**content, "min_words": 2, "cut": {"tokenizer": name}}).facts()
        for name in (words, str(tmp_path / "again"), str(tmp_path / "other"))
    ]
    assert facts[0] == facts[1] != facts[2]
    cut = CORPUS_SOURCES.validate({**content, "min_words": 2, "cut": {"tokenizer": words}})
    corpus = cut.build()
    pairs = corpus.examples.select(["text", "text_pair"]).to_pylist()
    joined = {f"{corpus.texts[p['text']]} {corpus.texts[p['text_pair']]}" for p in pairs}
    assert joined == {*LONG}


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        TokenCut(tokenizer=str(tmp_path)).halves(TEXT, 0)
    with pytest.raises(ValidationError, match=r"highest is 0\.2"):
        TokenCut(tokenizer="folder", lowest=0.5, highest=0.2)
