"""Names of relations in words, for descriptions: birthPlace and birth_place are both "birth place"."""

import re

_BOUNDARY = re.compile(
    r"[\s_/.:-]+"  # birth_place
    r"|(?<=[a-z0-9])(?=[A-Z])"  # birthPlace
    r"|(?<=[A-Z])(?=[A-Z][a-z])"  # LCCNNumber
)


def in_words(relation: str) -> str:
    """The words of a relation's name; lower case but for abbreviations.

    A name without any boundary (`atlocation`) stays what it is.
    """
    words = [word for word in _BOUNDARY.split(relation) if word]
    return " ".join(w if len(w) > 1 and w.isupper() else w.lower() for w in words) or relation
