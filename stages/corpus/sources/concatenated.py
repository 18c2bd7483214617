"""Long contexts from short pairs: every text of a labelled pair is placed among other sentences of its split.

Pairs keep their labels, so how much of the score remains at a given length shows how well a vector keeps one
sentence among others.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal

import pyarrow as pa
from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_GENERATED, MAX_SEED
from permafrost.stages.corpus.columns import PairClassification, Similarity
from permafrost.stages.corpus.made_pairs import MadePairs
from permafrost.stages.corpus.rows import SplitRows
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class ConcatenatedCorpus(MadePairs):
    """Pairs of files or of a dataset, each text padded with other sentences of its split.

    ```yaml
    kind: concatenated
    source: {kind: files, files: {test: data/sts.csv}, task: {kind: similarity, label: score}}
    n_words: 128
    ```
    """

    kind: Literal["concatenated"] = "concatenated"
    n_sentences: int | None = Field(default=None, ge=0, le=MAX_GENERATED)
    """Number of other sentences for every text."""
    n_words: int | None = Field(default=None, ge=1, le=MAX_GENERATED)
    """Or: other sentences are added until a text has at least this many words, separated by white space."""
    distractors: Literal["own", "shared"] = "own"
    """`own`: the two texts of a pair have no other sentence in common; `shared`: they have the same ones, in
    the same order, which makes every pair look alike."""
    place: Literal["random", "first", "last"] = "random"
    """Position of a text among the others; `random` is uniform, and the same for both texts if `shared`."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seeds the choice of sentences and positions."""

    @model_validator(mode="after")
    def _one_length(self) -> "ConcatenatedCorpus":
        if (self.n_sentences is None) == (self.n_words is None):
            raise ValueError(
                f"n_sentences is {self.n_sentences} and n_words is {self.n_words}; give one of the two"
            )
        return self

    @model_validator(mode="after")
    def _source_is_pairs_with_labels(self) -> "ConcatenatedCorpus":
        if not isinstance(self.source.task, Similarity | PairClassification):
            raise ValueError(
                f"the source of a concatenation has a task of kind {quoted(self.source.task.kind)}; its "
                "pairs need labels, so use 'similarity' or 'pair_classification'"
            )
        return self

    def rows(self) -> list[SplitRows]:
        """Read the pairs of every split and pad their texts.

        The sentences of a pair depend on the seed, the pair and the set of texts of its split alone, not on
        the order of the rows; none is one of the pair's own texts, and none occurs twice in it.

        Raises:
            InputError: see the source; or a split has too few other sentences.
        """
        return [_padded(split, self) for split in self.source.read_rows()]


def _padded(split: SplitRows, config: ConcatenatedCorpus) -> SplitRows:
    assert split.text_pair is not None, "a task of pairs without a second text"
    firsts, seconds = split.text.to_pylist(), split.text_pair.to_pylist()
    pool = sorted({*firsts, *seconds})
    try:
        padded = [_padded_pair(pair, pool, config) for pair in zip(firsts, seconds, strict=True)]
    except InputError as error:
        raise InputError(f"{split.where}: {error}") from error
    columns = [
        pa.chunked_array([list(side)], pa.large_string()) for side in zip(*padded, strict=True)
    ]
    return replace(
        split,
        where=f"the padded pairs of {split.where}",
        text=columns[0],
        text_pair=columns[1],
    )


def _padded_pair(
    pair: tuple[str, str], pool: Sequence[str], config: ConcatenatedCorpus
) -> tuple[str, str]:
    # Spelt out here, as a text must not change if the canonical form of keys does.
    rng = random.Random(f"{config.seed} {pair[0]!r} {pair[1]!r}")
    others = _others(rng, pool, pair)
    if config.distractors == "shared":
        n_own = min(len(text.split()) for text in pair)
        around = _taken(others, n_own, config, len(pool))
        at = _place(rng, len(around), config)
        return _around(pair[0], around, at), _around(pair[1], around, at)
    contexts: list[str] = []
    for text in pair:
        around = _taken(others, len(text.split()), config, len(pool))
        contexts.append(_around(text, around, _place(rng, len(around), config)))
    return contexts[0], contexts[1]


def _others(rng: random.Random, pool: Sequence[str], pair: tuple[str, str]) -> Iterator[str]:
    """Sentences of the pool in random order, each once, except those of the pair."""
    seen = set(pair)
    while len(seen) < len(pool):
        sentence = pool[rng.randrange(len(pool))]
        if sentence not in seen:
            seen.add(sentence)
            yield sentence


def _taken(
    others: Iterator[str], n_own_words: int, config: ConcatenatedCorpus, n_pool: int
) -> list[str]:
    if config.n_sentences is not None:
        taken = list(islice(others, config.n_sentences))
        missing = f"{config.n_sentences} for a text" if len(taken) < config.n_sentences else ""
    else:
        assert config.n_words is not None, "neither length is given"
        taken, n_words = list[str](), n_own_words
        while n_words < config.n_words and (sentence := next(others, None)) is not None:
            taken.append(sentence)
            n_words += len(sentence.split())
        missing = f"texts of {config.n_words} words" if n_words < config.n_words else ""
    if missing:
        raise InputError(
            f"its {n_pool} different sentences are too few for {missing}; ask for less, give more pairs, or "
            "let the two sides share them (distractors: shared)"
        )
    return taken


def _place(rng: random.Random, n_around: int, config: ConcatenatedCorpus) -> int:
    match config.place:
        case "first":
            return 0
        case "last":
            return n_around
        case "random":
            return rng.randrange(n_around + 1)


def _around(text: str, others: Sequence[str], at: int) -> str:
    return " ".join([*others[:at], text, *others[at:]])
