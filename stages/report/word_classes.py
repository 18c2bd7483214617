"""Weights of function words against content words, by a list of English function words of our own.

Source: GLOT, figure 5, shows on two sentences that function words weigh less, and does not say how a word's
class is told. Here a word is a function word if it is in the list below, whatever it is in its sentence:
closed classes have few words, but a tagger would tell the preposition `like` from the verb, and `that` as a
pronoun from a conjunction, and we do not. Such words stand in the list where the function word is the more
frequent reading. Numbers and names are content words. Texts in other languages have no function words by
this list.

Axes: T tokens of one text, c classes.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from permafrost.stages.report.tokens import ReadToken

WordClass = Literal["function", "content"]
WORD_CLASSES: tuple[WordClass, ...] = get_args(WordClass)

_DETERMINERS = """
a an the this that these those each every either neither some any no all both half such what which whose
another other much many more most few less least several enough
"""
_PRONOUNS = """
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
we us our ours ourselves they them their theirs themselves one who whom whoever whatever whichever anybody
anyone anything everybody everyone everything nobody none nothing somebody someone something there
"""
_PREPOSITIONS = """
about above across after against along among around as at before behind below beneath beside besides between
beyond by despite down during except for from in inside into like near of off on onto out outside over past
per since through throughout till to toward towards under underneath until up upon via with within without
"""
_CONJUNCTIONS = (
    "and but or nor so yet although because if lest once than though unless when whenever where whereas \
wherever whether while why how"
)
_VERBS = """
be am is are was were been being have has had having do does did doing done can could may might must shall
should will would ought cannot
"""
_PARTICLES = "not too very just also only even then again here now ever never still already n't"
_CLITICS = "t s re ve ll d m"
FUNCTION_WORDS = frozenset(
    " ".join(
        (_DETERMINERS, _PRONOUNS, _PREPOSITIONS, _CONJUNCTIONS, _VERBS, _PARTICLES, _CLITICS)
    ).split()
)
"""In lower case; clitics are what tokenizers leave of `don't` and `it's` behind the apostrophe."""


def classes_of(tokens: Sequence[ReadToken]) -> Int64[np.ndarray, " t"]:
    """Class of the word of each token, as its place in `WORD_CLASSES`; -1 for special tokens and punctuation,
    which are of none."""
    classes_T = np.full(len(tokens), -1, dtype=np.int64)
    for places in _words(tokens):
        word = "".join(tokens[place].text for place in places).lower()
        classes_T[places] = WORD_CLASSES.index("function" if word in FUNCTION_WORDS else "content")
    return classes_T


def by_class(
    weights_T: Float64[np.ndarray, " t"], classes_T: Int64[np.ndarray, " t"]
) -> Float64[np.ndarray, " c"]:
    """Weight of the tokens of each class of word, in the order of `WORD_CLASSES`; classes are those of
    `classes_of`."""
    of_a_class = classes_T >= 0
    return np.bincount(
        classes_T[of_a_class], weights=weights_T[of_a_class], minlength=len(WORD_CLASSES)
    )


def relative(
    shares: Float64[np.ndarray, " c"], uniform: Float64[np.ndarray, " c"]
) -> Float64[np.ndarray, " c"]:
    """Mean weight of a token of each class, as a multiple of that under a plain mean; NaN for a class without
    tokens."""
    return np.divide(shares, uniform, out=np.full(len(shares), np.nan), where=uniform > 0)


def _words(tokens: Sequence[ReadToken]) -> Iterator[list[int]]:
    """Places of the tokens of each word."""
    word: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind != "continuation" and word:
            yield word
            word = []
        if token.kind in ("word", "continuation"):
            word.append(place)
    if word:
        yield word
