"""A sample of texts does not depend on their order."""

import random

import pytest

from permafrost.stages.corpus.text_sample import TextSample, choose_texts
from permafrost.storage.errors import InputError

TEXTS = [f"{'word ' * (i % 7)}number {i}" for i in range(60)]


def test_the_same_texts_in_the_same_order_however_they_come() -> None:
    sample = TextSample(n_texts=10, min_words=4, seed=3)
    chosen = choose_texts(TEXTS, sample)
    mixed = random.Random(0).sample(TEXTS, len(TEXTS)) + TEXTS[:20]
    assert choose_texts(mixed, sample) == chosen
    assert len(chosen) == len(set(chosen)) == 10
    assert all(len(text.split()) >= 4 for text in chosen)


def test_fewer_texts_are_the_first_of_more_and_another_seed_chooses_others() -> None:
    ten = choose_texts(TEXTS, TextSample(n_texts=10, min_words=1))
    assert choose_texts(TEXTS, TextSample(n_texts=3, min_words=1)) == ten[:3]
    assert choose_texts(TEXTS, TextSample(n_texts=10, min_words=1, seed=1)) != ten
    assert sorted(choose_texts(TEXTS, TextSample(n_texts=99, min_words=1))) == sorted(TEXTS)


def test_no_text_long_enough_is_refused() -> None:
    with pytest.raises(InputError, match="none of 60 texts has 20 words or more"):
        choose_texts(TEXTS, TextSample(min_words=20))
