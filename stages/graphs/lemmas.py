"""The words of a text as lemmas: simplemma's dictionaries, and the words that are not linked alone.

Where a script writes no spaces between words, what stands between two signs counts as one word.
"""

import re
import unicodedata
from functools import lru_cache

from permafrost.stages.graphs.word_pattern import WORD

ENGLISH = "en"
_WORD = re.compile(rf"{WORD}(?:['-]{WORD})*")
_N_CACHED = 1 << 18
_OTHER_CODES = {"no": "nb", "sh": "hbs"}
"""Codes of ConceptNet that simplemma's dictionaries have other names for."""
_CAPITAL_NOUNS = ("de", "lb")
"""Languages whose dictionaries tell nouns by capitals: German's "Buch" is a noun, "buch" is of "buchen"."""

STOP_WORDS = frozenset(
    _WORD.findall(
        """
    a about above after again against all almost along already also although always am among an and
    another any anybody anyone anything anywhere are aren't around as at away be because been before
    being below between both but by can can't cannot could couldn't did didn't do does doesn't doing
    don't done down during each either else enough especially etc even ever every everybody everyone
    everything everywhere few for from further get gets getting give given go goes going got had
    hadn't has hasn't have haven't having he her here hers herself him himself his how however i if
    in indeed instead into is isn't it its itself just keep kept let like likely made make makes
    making many may maybe me might mine more most mostly much must my myself neither never no nobody
    none nor not nothing now nowhere of off often on once one ones only onto or other others
    otherwise our ours ourselves out over own per perhaps put quite rather really same say says see
    seem seems several shall she should shouldn't since so some somebody someone something sometimes
    somewhere still such take takes than that the their theirs them themselves then there therefore
    these they thing things this those though through thus to too toward towards two under until
    unless up upon us use used uses using usually very via want wants was wasn't we well were
    weren't what whatever when whenever where wherever whether which whichever while who whoever
    whole whom whose why will with within without won't would wouldn't yet you your yours yourself
    yourselves
        """
    )
)
"""Words of grammar and the commonest verbs: as written or as lemmas they name no entity by themselves."""


def words_of(text: str, language: str = ENGLISH) -> list[str]:
    """The words of a text in lower case, without punctuation and without a possessive 's."""
    plain = unicodedata.normalize("NFC", text).replace("’", "'").replace("_", " ")
    # Other languages' dictionaries have letters that this folds: German's ß, Greek's final sigma.
    plain = plain.casefold() if language == ENGLISH else plain.lower()
    return [word.removesuffix("'s") for word in _WORD.findall(plain)]


@lru_cache(maxsize=_N_CACHED)
def lemma(word: str, language: str = ENGLISH) -> str:
    """The lemma of a word of `words_of`, in lower case; a word that the dictionary lacks stays as it is, and
    so does every word of a language without a dictionary.

    Source: simplemma 2.0, rules and dictionaries.
    """
    # Half a second, and two more for its dictionary: only who links needs it.
    from simplemma import lemmatize

    if language in _CAPITAL_NOUNS:
        # As most labels are nouns; forms of adjectives ("schöne") may be missed.
        word = word.capitalize()
    try:
        return lemmatize(word, lang=_OTHER_CODES.get(language, language)).casefold()
    except ValueError:  # what simplemma raises where it has no dictionary
        return word.casefold()


def is_stop_word(word: str, language: str = ENGLISH) -> bool:
    """Whether a word, or its lemma, is one of `STOP_WORDS`; false in other languages than English."""
    return language == ENGLISH and (word in STOP_WORDS or lemma(word) in STOP_WORDS)
