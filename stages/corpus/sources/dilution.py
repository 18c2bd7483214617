"""The signal-dilution task: a short statement among distracting words, at a chosen share of them.

A text has exactly `n_words` words: `round(ratio * n_words)` distractors, and between them, at a
uniform position, one contiguous signal block of all other words. The block holds one statement
(`single`) or as many as fit (`tiled`), padded with filler words at uniform positions; or, as algorithm 2 is
printed, one statement with distractors behind it (`printed`).

    present: the drawer holds KEYS word word word word NEVER
    absent:  the drawer holds NEVER word word word word KEYS

Both statements have the same words and the same length; only the order, that is whether the noun is
negated after its context, determines the label. Distractors are drawn from the whole vocabulary, statement
words included. So neither the length nor the bag of words of a text carries any information.

Source: GLOT, algorithm 2 and section 4.6. We differ from the released code, whose positives are 11
words shorter, whose modifiers (but one) never occur as noise, and which truncates the statement at high
ratios; and we use our own wording.

`printed` is algorithm 2, which keeps the total length and pads the signal with distractors up to its share,
so that a text has `n_words - n_statement` of them at every ratio. The ratio decides only how far from the
text's start the statement may begin, after 0 to `round(ratio * n_words)` words: it moves the statement and
does not dilute it, so a curve over ratios shows no effect of the share of distractors. That the padding
stands behind the statement is our reading.
"""

import random
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from permafrost.stages.bounds import MAX_GENERATED, MAX_SEED
from permafrost.stages.corpus.columns import Classification
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import CorpusSource
from permafrost.storage.errors import InputError

# Common words, each one piece in BERT's vocabulary.
CONTEXTS = (
    ("the", "parcel", "holds"),
    ("our", "cabinet", "keeps"),
    ("this", "drawer", "contains"),
    ("that", "basket", "includes"),
    ("her", "suitcase", "carries"),
    ("his", "shelf", "offers"),
)
"""Openings of a statement; all of one length, so that statements are."""

NOUNS = (
    "maps", "letters", "coins", "photos", "tools", "books", "lamps", "shirts",
    "gloves", "bottles", "cards", "stamps", "cables", "ropes", "candles", "badges",
)  # fmt: skip
"""Objects that are present or absent."""

MODIFIERS = ("not", "never", "without", "except", "lacking", "minus")
"""Words that negate the noun after them."""

_FILLERS = """
river stone green music garden winter summer window table paper simple narrow quiet strong
gentle yellow silver bridge market village mountain forest island harbor valley meadow field
road street corner station travel morning evening night week month year hour minute season
autumn spring weather cloud rain snow wind sun moon star sky earth water fire light shadow color
sound voice song dance story poem novel chapter page line word letter number figure circle
square point center edge side front back upper lower middle inner outer open closed full half
double single common public private local national foreign modern ancient young old new recent
former final first second third next last large small long short high low deep wide heavy soft
hard warm cold dry wet clean bright dark sweet fresh plain rich poor fast slow early late ready
able walk run jump climb swim drive ride sail fly turn move bring send meet speak listen watch
read write learn teach build paint draw cut join grow plant cook clear wash sleep rest play work
begin finish follow lead farmer teacher doctor driver painter singer sailor baker soldier
student child friend neighbor captain house school church office factory museum theater library
hospital castle tower gate wall roof floor door horse bird fish cow sheep goat dog cat bear wolf
tree leaf flower grass seed fruit apple bread milk cheese often always soon again almost perhaps
together nearly rather quite under over between behind beyond near across along around toward
during before after while because although where when there here then now
"""
FILLERS = tuple(_FILLERS.split())
"""Words unrelated to the label."""

CLASS_NAMES = ("absent", "present")

STATEMENT_WORDS = (*(word for context in CONTEXTS for word in context), *NOUNS, *MODIFIERS)
_STATEMENT_SHARE = 0.25
"""Share of the distractors that are statement words; drawn uniformly it would be 13%, too few for each to
occur in a small split."""
_MAX_DRAWS = 100
"""Draws of one text until it is new."""


class DilutionCorpus(CorpusSource):
    """Generated texts for binary classification, exactly balanced in every split.

    ```yaml
    kind: dilution
    ratio: 0.8
    signal: single
    ```
    """

    surface_at_chance: ClassVar[bool] = True

    kind: Literal["dilution"] = "dilution"
    ratio: float = Field(ge=0, lt=1)
    """Share of distractor words."""
    signal: Literal["single", "tiled", "printed"] = "single"
    """One statement per text, or as many as fit into the signal block, all of the text's class. `printed` is
    one, padded with distractors, as in algorithm 2: there `ratio` moves the statement and dilutes nothing."""
    n_words: int = Field(default=96, ge=1, le=MAX_GENERATED)
    """Number of words in every text."""
    gap: int = Field(default=4, ge=0, le=MAX_GENERATED)
    """Filler words between the noun and its modifier: the relational distance."""
    n_train: int = Field(default=1000, ge=2, le=MAX_GENERATED, multiple_of=2)
    """Training texts; even, half of each class."""
    n_dev: int = Field(default=300, ge=2, le=MAX_GENERATED, multiple_of=2)
    """Development texts; even, half of each class."""
    n_test: int = Field(default=500, ge=2, le=MAX_GENERATED, multiple_of=2)
    """Test texts; even, half of each class."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Seeds the generated texts."""

    @property
    def n_distractors(self) -> int:
        """Number of distractor words per text."""
        return round(self.ratio * self.n_words)

    @property
    def n_signal(self) -> int:
        """Number of words in the signal block."""
        return self.n_words - self.n_distractors

    @property
    def n_statement(self) -> int:
        """Number of words in one statement: context, noun, gap, modifier."""
        return len(CONTEXTS[0]) + 1 + self.gap + 1

    @model_validator(mode="after")
    def _a_statement_fits(self) -> "DilutionCorpus":
        if self.n_signal < self.n_statement:
            raise ValueError(
                f"with ratio {self.ratio} of n_words {self.n_words} the signal block has "
                f"{self.n_signal} words, but one statement with gap {self.gap} has "
                f"{self.n_statement}; lower ratio or gap, or raise n_words"
            )
        return self

    def columns(self) -> Classification:
        """One text, one class."""
        return Classification()

    def facts(self) -> dict[str, Any]:
        """The config itself, which determines the texts."""
        return self.model_dump()

    def rows(self) -> list[SplitRows]:
        """Generate train, dev and test; no text occurs twice, in a split or across splits.

        Raises:
            InputError: the sizes allow fewer different texts than requested.
        """
        seen: set[str] = set()
        sizes = {"train": self.n_train, "dev": self.n_dev, "test": self.n_test}
        rows = [_split(self, split, n_texts, seen) for split, n_texts in sizes.items()]
        assert len(seen) == sum(sizes.values()), "a generated text occurs twice"
        return rows


def _split(config: DilutionCorpus, split: str, n_texts: int, seen: set[str]) -> SplitRows:
    # Every config and split has its own random stream, so that none repeats the draws of another; spelt out
    # here, as a text must not change if the canonical form of keys does.
    rng = random.Random(
        f"{split} ratio={config.ratio!r} signal={config.signal} n_words={config.n_words} "
        f"gap={config.gap} seed={config.seed}"
    )
    labels = [i % 2 for i in range(n_texts)]
    rng.shuffle(labels)
    texts = [_new_text(config, label, rng, seen) for label in labels]
    return SplitRows(
        split=split,
        where=f"the {split} split of the dilution task",
        text=pa.chunked_array([texts], pa.large_string()),
        text_pair=None,
        label=pa.chunked_array([labels], pa.int64()),
        class_names=CLASS_NAMES,
    )


def _new_text(config: DilutionCorpus, label: int, rng: random.Random, seen: set[str]) -> str:
    for _ in range(_MAX_DRAWS):
        text = " ".join(_words(config, label, rng))
        if text not in seen:
            seen.add(text)
            return text
    raise InputError(
        f"the dilution task with ratio {config.ratio}, n_words {config.n_words} and gap "
        f"{config.gap} has too few different texts for n_train {config.n_train}, n_dev "
        f"{config.n_dev} and n_test {config.n_test} (found {len(seen)}); raise n_words or gap, or "
        "ask for fewer texts"
    )


def _words(config: DilutionCorpus, label: int, rng: random.Random) -> list[str]:
    before = rng.randrange(config.n_distractors + 1)
    block = _signal_block(config, label, rng)
    after = config.n_distractors - before
    words = [*_distractors(before, rng), *block, *_distractors(after, rng)]
    assert len(words) == config.n_words, (len(words), config)
    return words


def _signal_block(config: DilutionCorpus, label: int, rng: random.Random) -> list[str]:
    if config.signal == "printed":
        noun = rng.choice(NOUNS)
        padding = _distractors(config.n_signal - config.n_statement, rng)
        return [*_statement(config, label, noun, rng), *padding]
    n_statements = 1 if config.signal == "single" else config.n_signal // config.n_statement
    n_padding = config.n_signal - n_statements * config.n_statement
    # Padding words and statements in random order: every arrangement is equally likely.
    slots = [None] * n_padding + [True] * n_statements
    rng.shuffle(slots)
    nouns = _without_repetition(NOUNS, rng)
    block: list[str] = []
    for slot in slots:
        block += (
            [rng.choice(FILLERS)] if slot is None else _statement(config, label, next(nouns), rng)
        )
    return block


def _statement(config: DilutionCorpus, label: int, noun: str, rng: random.Random) -> list[str]:
    gap = rng.choices(FILLERS, k=config.gap)
    context, modifier = rng.choice(CONTEXTS), rng.choice(MODIFIERS)
    first, second = (noun, modifier) if label == 1 else (modifier, noun)
    return [*context, first, *gap, second]


def _without_repetition(words: tuple[str, ...], rng: random.Random) -> Iterator[str]:
    """All words in random order, then all again in another."""
    while True:
        yield from rng.sample(words, len(words))


def _distractors(n_words: int, rng: random.Random) -> list[str]:
    return [
        rng.choice(STATEMENT_WORDS if rng.random() < _STATEMENT_SHARE else FILLERS)
        for _ in range(n_words)
    ]
