"""Matches of a graph and a text, drawn in twos that can exchange their texts.

The two have the same number of parts, and parts of the same numbers of triples, so that neither the size of a
graph nor the length of a text, nor both together, tell a match from an exchange.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

from permafrost.storage.errors import InputError

Triple = tuple[str, str, str]


@dataclass(frozen=True)
class Match:
    """Parts, each the triples of a graph and the text that tells of them."""

    parts: tuple[tuple[Triple, ...], ...]
    texts: tuple[str, ...]

    @cached_property
    def triples(self) -> tuple[Triple, ...]:
        """Those of all parts."""
        return tuple(triple for part in self.parts for triple in part)

    @cached_property
    def text(self) -> str:
        """Those of all parts."""
        return " ".join(self.texts)


def draw_matches(
    told: Sequence[Match],
    merged: Sequence[int],
    n_twos: int,
    draw: random.Random,
    where: str,
    shown: Callable[[Triple], Triple],
) -> list[tuple[Match, Match]]:
    """Twos of matches of several parts each; no match comes twice, no triple is in both of two.

    Texts are drawn without replacement, from all again when none is left that fits.

    Args:
        told: matches of one part each, in an order that depends on their content alone.
        merged: numbers of parts, equally frequent.
        n_twos: how many.
        draw: every choice is drawn from it.
        where: names the source, for messages.
        shown: a triple as a graph shows it: two that look the same are the same.

    Raises:
        InputError: there are too few texts.
    """
    pool, seen = _Pool(told, draw, shown), set[frozenset[str]]()
    twos: list[tuple[Match, Match]] = []
    for at in range(n_twos):
        two = _draw_two(pool, merged[at % len(merged)], seen)
        if two is None:
            raise InputError(
                f"{where} has {len(told)} texts that can be used, which are too few for {4 * n_twos} cases "
                f"(found {4 * len(twos)}); lower n_train, n_dev or n_test, or merge more texts"
            )
        twos.append(two)
    return twos


_MAX_DRAWS = 100
"""Draws of one two until both of its matches are new."""


def _draw_two(pool: "_Pool", n_parts: int, seen: set[frozenset[str]]) -> tuple[Match, Match] | None:
    for _ in range(_MAX_DRAWS):
        told_of = set[Triple]()
        first = [pool.take(None, told_of) for _ in range(n_parts)]
        if not _all_there(first):
            continue
        second = [pool.take(len(one.triples), told_of) for one in first]
        if not _all_there(second):
            continue
        one, other = _joined(first), _joined(second)
        names = {frozenset(one.texts), frozenset(other.texts)}
        if len(names) == 2 and not names & seen:
            seen |= names
            return one, other
    return None


def _all_there(parts: list[Match | None]) -> TypeGuard[list[Match]]:
    return None not in parts


def _joined(parts: Sequence[Match]) -> Match:
    return Match(tuple(m.triples for m in parts), tuple(m.text for m in parts))


class _Pool:
    """Texts not drawn yet."""

    def __init__(
        self, told: Sequence[Match], draw: random.Random, shown: Callable[[Triple], Triple]
    ) -> None:
        self._all, self._draw = told, draw
        self._left: dict[int, Match] = {}
        # A text may tell of several graphs: it must not be a mismatch to any of them.
        graphs: defaultdict[str, set[Triple]] = defaultdict(set)
        for match in told:
            graphs[match.text].update(map(shown, match.triples))
        self._told_by = graphs

    def take(self, n_triples: int | None, told_of: set[Triple]) -> Match | None:
        """The next one of this size, or of any, that tells of nothing told of; what it tells of is added."""
        for refilled in (False, True):
            if refilled:
                self._refill()
            for key, match in self._left.items():
                own = self._told_by[match.text]
                if n_triples in (None, len(match.triples)) and told_of.isdisjoint(own):
                    del self._left[key]
                    told_of |= own
                    return match
        return None

    def _refill(self) -> None:
        """Every text again, in another order."""
        order = list(range(len(self._all)))
        self._draw.shuffle(order)
        self._left = {at: self._all[at] for at in order}
