"""ConceptNet's relations, merged to 17 as QA-GNN does; the table is `relations_17.csv` beside this file.

It has a row for every relation of ConceptNet 5 and of CN-100K, in the order of the merged ones: its name, the
merged one (empty: triples with it are dropped), whether head and tail change places, and the number of its
triples in CN-100K's training part. Names of CN-100K that QA-GNN's list lacks: `DesireOf` and
`LocationOfAction` state what `desires` and `atlocation` do; `InheritsFrom`, whose triples point either way,
and `SymbolOf` become `relatedto`; negations without a merged relation (`NotIsA` and others) and the two on
pain are dropped, since any merged relation would state something else.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.graphs.relation_names import require_free
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

MERGED = (
    "antonym",
    "atlocation",
    "capableof",
    "causes",
    "createdby",
    "isa",
    "desires",
    "hassubevent",
    "partof",
    "hascontext",
    "hasproperty",
    "madeof",
    "notcapableof",
    "notdesires",
    "receivesaction",
    "relatedto",
    "usedfor",
)
"""The merged relations, in QA-GNN's order."""
MERGED_WORDS = (
    "antonym",
    "at location",
    "capable of",
    "causes",
    "created by",
    "is a",
    "desires",
    "has subevent",
    "part of",
    "has context",
    "has property",
    "made of",
    "not capable of",
    "not desires",
    "receives action",
    "related to",
    "used for",
)
"""The words of their names, which have none of the boundaries that names of relations are split at."""
MERGED_TEMPLATES = (
    "is the antonym of",
    "is at location of",
    "is capable of",
    "causes",
    "is created by",
    "is a kind of",
    "desires",
    "has subevent",
    "is part of",
    "has context",
    "has property",
    "is made of",
    "is not capable of",
    "does not desires",
    "is",
    "is related to",
    "is used for",
)
"""QA-GNN's wording of them, between head and tail, as its code has it."""

Relations = Literal["merged", "raw"]
"""`merged`: the 17, whether or not each occurs; `raw`: those that occur, sorted by name."""

Wording = Literal["names", "templates"]
"""How a merged relation reads in a description: the words of its name, or QA-GNN's template."""

DROPPED = -1
"""The number of a relation whose triples are dropped."""


@dataclass(frozen=True)
class TableRow:
    """What becomes of one raw relation."""

    raw: str
    merged: str
    """Empty if its triples are dropped."""
    is_reversed: bool
    """Whether head and tail change places."""
    n_cn100k: int
    """Its triples in CN-100K's training part."""


@cache
def relation_rows() -> tuple[TableRow, ...]:
    """The table as it lies in the package."""
    text = (files("permafrost.stages.graphs") / "relations_17.csv").read_text(encoding="utf-8")
    return tuple(
        TableRow(row["raw"], row["merged"], row["reversed"] == "yes", int(row["cn100k"]))
        for row in csv.DictReader(text.splitlines())
    )


def relation_words(relations: Sequence[str], wording: Wording = "names") -> tuple[str, ...]:
    """The words of the merged relations; empty for others, whose names say where they are to be split."""
    if tuple(relations) != MERGED:
        return ()
    return MERGED_WORDS if wording == "names" else MERGED_TEMPLATES


def require_wording(wording: Wording, relations: Relations) -> None:
    """Raises: ValueError: there are templates for merged relations only."""
    if wording == "templates" and relations == "raw":
        raise ValueError(
            "wording is templates, which QA-GNN has for the merged relations, and relations is raw; set "
            "relations: merged, or leave wording out"
        )


def table_facts() -> list[list[str]]:
    """What of the table enters keys."""
    return [[r.raw, r.merged, "reversed" if r.is_reversed else ""] for r in relation_rows()]


def numbered_relations(
    names: Sequence[str], relations: Relations, where: str
) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.bool_]]:
    """The vocabulary of relations, and the number in it and the direction of each name.

    Args:
        names: distinct names as read; upper and lower case count as equal in the table.
        relations: the vocabulary that is wanted.
        where: names the source, for messages.

    Returns:
        The vocabulary; `[n]` numbers in it, `DROPPED` for dropped ones; `[n]` whether head and tail change
        places.

    Raises:
        InputError: the table lacks a name; or a raw one is not free (`require_free`).
    """
    if relations == "raw":
        for name in names:
            require_free(name, f"{where} has the relation {quoted(name)}")
        vocabulary = tuple(sorted(names))
        number = {name: i for i, name in enumerate(vocabulary)}
        numbers = np.array([number[name] for name in names], np.int32)
        return vocabulary, numbers, np.zeros(len(names), np.bool_)
    known = {row.raw.casefold(): row for row in relation_rows()}
    if unknown := [name for name in names if name.casefold() not in known]:
        raise InputError(
            f"{where} has {len(unknown)} relations that the table of merged relations lacks: "
            f"{', '.join(map(quoted, unknown[:10]))}; it has ConceptNet's, such as 'IsA'. Correct the names, "
            "or take the relations as they are with 'relations: raw'"
        )
    rows = [known[name.casefold()] for name in names]
    numbers = [MERGED.index(row.merged) if row.merged else DROPPED for row in rows]
    return MERGED, np.array(numbers, np.int32), np.array([r.is_reversed for r in rows], np.bool_)
