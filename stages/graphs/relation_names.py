"""Names of relations as a user gives them."""

from collections.abc import Sequence

from permafrost.stages.graphs.graph_corpus import INVERSE_MARK, QUERY_RELATIONS
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def require_free(name: str, what: str) -> None:
    """Check that edges of our own do not have the name of a relation.

    Args:
        name: without spaces around it.
        what: names it, for messages: who has it, and which it is.

    Raises:
        InputError: it marks an inverse relation, or is that of a query node's edges.
    """
    if name.startswith(INVERSE_MARK):
        raise InputError(
            f"{what}; names that begin with {INVERSE_MARK} are those of inverse relations, so give it another"
        )
    if name in QUERY_RELATIONS:
        raise InputError(
            f"{what}; {' and '.join(map(quoted, QUERY_RELATIONS))} are the relations of a query node's "
            "edges, so give it another name"
        )


def trimmed_names(names: Sequence[str], where: str = "relations") -> tuple[str, ...]:
    """The names without spaces around them, as those of a table are read.

    Args:
        names: of relations.
        where: what gives them, for messages.

    Raises:
        InputError: one is blank, is not free (`require_free`), or is there twice.
    """
    found: dict[str, str] = {}
    for name in names:
        trimmed = name.strip()
        if not trimmed:
            raise InputError(f"{where} names {quoted(name)}, which is blank; give it a name")
        require_free(trimmed, f"{where} names {quoted(name)}")
        if (earlier := found.setdefault(trimmed, name)) != name:
            raise InputError(
                f"{where} names {quoted(earlier)} and {quoted(name)}, which are one name without the spaces "
                "around them; name every relation once"
            )
    if len(found) < len(names):
        again = next(name for name in names if list(names).count(name) > 1)
        raise InputError(f"{where} names {quoted(again)} twice; name every relation once")
    return tuple(found)
