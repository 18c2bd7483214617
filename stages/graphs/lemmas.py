"""The words of a text as lemmas: simplemma's English dictionary, and the words that are not linked alone."""

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_N_CACHED = 1 << 18

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


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation and without a possessive 's."""
    plain = unicodedata.normalize("NFC", text).replace("’", "'").casefold()
    return [word.removesuffix("'s") for word in _WORD.findall(plain)]


@lru_cache(maxsize=_N_CACHED)
def lemma(word: str) -> str:
    """The lemma of a word of `words_of`, in lower case; a word that the dictionary lacks stays as it is.

    Source: simplemma 2.0, rules and dictionary for English.
    """
    # Half a second, and two more for its dictionary: only who links needs it.
    from simplemma import lemmatize

    return lemmatize(word, lang="en").casefold()


def is_stop_word(word: str) -> bool:
    """Whether a word, or its lemma, is one of `STOP_WORDS`."""
    return word in STOP_WORDS or lemma(word) in STOP_WORDS
