"""Words by part of speech, as far as a list of English closed classes tells them.

Source: GLOT, figure 5, shows on two sentences that function words weigh less, and does not say how a word's
class is told. The classes are those of Universal Dependencies, the words of the closed ones a list of ours
after its English guidelines. There is no tagger here, so

- **open classes are one**: nouns, names, verbs, adjectives and adverbs are all words that are not in the list
  (`OPEN`); adverbs that are function words (`how`, `very`, `also`) are listed (`ADV`);
- **a word has one class, whatever it is in its sentence**. Where several are common, the list takes: `that`
  PRON (also SCONJ, DET), `this`, `these`, `those` DET (PRON), `what`, `which` PRON (DET), `her`, `his` and
  other possessives PRON (as there), `to` PART (ADP), `there` PRON (ADV), `one` PRON (NUM), `as`, `like`,
  `before`, `after`, `since`, `until` ADP (SCONJ, VERB), `than` SCONJ (ADP), `so`, `yet`, `when`, `where` ADV
  (CCONJ, SCONJ), `up`, `out`, `on` ADP (ADV), `be`, `have`, `do` in all forms AUX (VERB), `'s` PART (AUX).
  Quantifiers (`many`, `most`, `few`, `other`) are DET, where the guidelines have ADJ for some;
- **a contraction in one word** (`she'd`, `it's`, where a tokenizer does not split it) is what stands before
  its apostrophe, but AUX where it ends in `n't` (`don't`, `won't`).

DET, PRON, ADP, CCONJ, SCONJ, AUX, PART and ADV are function words, NUM and OPEN content words; PUNCT, all
tokens without a letter or digit, is neither, and special tokens are of no class. Words of other languages are
OPEN or NUM too, unless they are written like one of the list: German `in`, `an`, `am`, `was` and `so`, French
`on` and, by what stands before its apostrophe, `d'une` have the English word's class.

Axes: T tokens of one text, p parts of speech, c classes (function, content).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from permafrost.stages.report.tokens import ReadToken

PartOfSpeech = Literal[
    "DET", "PRON", "ADP", "CCONJ", "SCONJ", "AUX", "PART", "ADV", "NUM", "OPEN", "PUNCT"
]
PARTS: tuple[PartOfSpeech, ...] = get_args(PartOfSpeech)
PART_NAMES: Mapping[PartOfSpeech, str] = {
    "DET": "DET: the, this, all",
    "PRON": "PRON: it, her, what",
    "ADP": "ADP: of, in, like",
    "CCONJ": "CCONJ: and, or, but",
    "SCONJ": "SCONJ: if, because",
    "AUX": "AUX: is, have, can",
    "PART": "PART: to, not, 's",
    "ADV": "ADV: how, very, so",
    "NUM": "NUM: 2020, seven",
    "OPEN": "NOUN, VERB, ADJ, other ADV",
    "PUNCT": "PUNCT",
}
"""As tables have them."""
WordClass = Literal["function", "content"]
WORD_CLASSES: tuple[WordClass, ...] = get_args(WordClass)
CONTENT: tuple[PartOfSpeech, ...] = ("NUM", "OPEN")
"""Those that are content words; the other ones of words are function words."""

_NEGATED = "do does did is are was were has have had could should would must might need"
_LISTS: Mapping[PartOfSpeech, str] = {
    "DET": """
a an the this these those each every either neither some any no all both half such another other much many
more most few less least several enough
""",
    "PRON": """
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself
we us our ours ourselves they them their theirs themselves one that what which whose who whom whoever whatever
whichever anybody anyone anything everybody everyone everything nobody none nothing somebody someone something
there
""",
    "ADP": """
about above across after against along among around as at before behind below beneath beside besides between
beyond by despite down during except for from in inside into like near of off on onto out outside over past
per since through throughout till toward towards under underneath until up upon via with within without
""",
    "CCONJ": "and but or nor",
    "SCONJ": """
although because if lest once than though unless whenever whereas wherever whether while
""",
    "AUX": """
be am is are was were been being have has had having do does did doing done can could may might must shall
should will would ought cannot re ve ll d m
"""
    + " ".join(f"{verb}n" for verb in _NEGATED.split())
    + " ain shan",
    "PART": "to not n't t s",
    "ADV": """
so yet how why when where too very just also only even then again here now ever never still already
""",
    "NUM": """
zero two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion
""",
}
LISTED: Mapping[str, PartOfSpeech] = {
    word: part for part, words in _LISTS.items() for word in words.split()
}
"""Words in lower case. `t`, `s`, `re`, ... are what tokenizers leave behind the apostrophe of a contraction,
`don`, `isn`, ... what they leave before it; not `won` and `can`, which are words."""
_NUMBER = re.compile(r"\d+([.,:]\d+)*")


def parts_of(tokens: Sequence[ReadToken]) -> Int64[np.ndarray, " t"]:
    """Part of speech of the word of each token, as its place in `PARTS`; -1 for special tokens."""
    parts_T = np.full(len(tokens), -1, dtype=np.int64)
    for place, token in enumerate(tokens):
        if token.kind == "punctuation":
            parts_T[place] = PARTS.index("PUNCT")
    for places in _words(tokens):
        word = "".join(tokens[place].text for place in places)
        parts_T[places] = PARTS.index(part_of(word))
    return parts_T


def part_of(word: str) -> PartOfSpeech:
    """The part of speech of a word by itself."""
    word = word.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if _NUMBER.fullmatch(word):
        return "NUM"
    if (part := LISTED.get(word)) is not None:
        return part
    return "AUX" if word.endswith("n't") else LISTED.get(word.partition("'")[0], "OPEN")


def by_part(
    weights_T: Float64[np.ndarray, " t"], parts_T: Int64[np.ndarray, " t"]
) -> Float64[np.ndarray, " p"]:
    """Weight of the tokens of each part of speech, in the order of `PARTS`; parts are those of `parts_of`."""
    has_one = parts_T >= 0
    return np.bincount(parts_T[has_one], weights=weights_T[has_one], minlength=len(PARTS))


def by_class(shares: Float64[np.ndarray, " p"]) -> Float64[np.ndarray, " c"]:
    """Shares of function and content words, in the order of `WORD_CLASSES`, from those by part of speech."""
    is_content = np.isin(PARTS, CONTENT)
    is_function = ~is_content & (np.array(PARTS) != "PUNCT")
    return np.array([shares[is_function].sum(), shares[is_content].sum()])


def relative(
    shares: Float64[np.ndarray, " n"], uniform: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
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
