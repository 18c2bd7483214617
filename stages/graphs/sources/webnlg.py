"""Pairs of a graph and a text that tells of it, or of something else, made of WebNLG.

Source: GT2VEC, section 4.1 and appendix C.2. Left open there, and ours: one to three texts are merged; a
negative has the graph of one match and the text of another with as many triples; whole texts are left out
when they tell of a relation that is not used.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from permafrost.stages.bounds import MAX_GENERATED, MAX_SEED
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.graphs.assembling import Case, Item, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.mentions import mentioned
from permafrost.stages.graphs.source import GraphSource
from permafrost.stages.graphs.swapped_matches import Match, draw_matches
from permafrost.stages.graphs.webnlg_files import (
    SPLITS,
    RawTriple,
    Told,
    label_of,
    read_split,
    split_identity,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

CLASS_NAMES = ("mismatch", "match")
_Size = Annotated[int, Field(ge=4, le=MAX_GENERATED, multiple_of=4)]


class WebnlgPairs(GraphSource):
    """Graph and text: does the text tell of the graph? Half of the cases of every split are matches.

    ```yaml
    kind: webnlg_pairs
    path: data/webnlg_v3_en
    ```

    Matches come in twos of equal size that exchange their texts for the negatives. So every text, and every
    graph, is once in each class: neither says anything about the class without the other.
    """

    surface_at_chance: ClassVar[bool] = True

    kind: Literal["webnlg_pairs"] = "webnlg_pairs"
    path: str
    """Folder with train, dev and test: tables with the columns `text` and `triples` (a list of
    `subject | relation | object`), or folders of XML files, as in a release."""
    relations: Literal["shared", "unfiltered"] = "shared"
    """`shared`: texts are used if all of their relations occur in train, dev and test. `unfiltered`: if all
    of them occur in train or dev."""
    merged: tuple[Annotated[int, Field(ge=1, le=9)], ...] = Field(default=(1, 2, 3), min_length=1)
    """Numbers of texts, with their triples, that make a match; equally frequent."""
    linking: Literal["label_in_text", "none"] = "label_in_text"
    """Which nodes the query node is joined to: every node whose label occurs in the text, or none. Joined, a
    graph shows how much of it the text names: a model of graphs without texts is a control with `none`, or
    if it hides the query node, as `gnn_only` does."""
    n_train: _Size = 10_000
    """Training cases; a multiple of four, as all sizes."""
    n_dev: _Size = 4_000
    """Development cases."""
    n_test: _Size = 2_000
    """Test cases."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives other cases."""

    @field_validator("merged")
    @classmethod
    def _each_once(cls, merged: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(merged)) < len(merged):
            raise ValueError(f"merged is {list(merged)}; name every number once")
        return tuple(sorted(merged))

    @classmethod
    def label_given(cls, label: str) -> str:
        """Without underscores, quotation marks and datatypes; see `label_of`."""
        return label_of(label)

    @property
    def task_kind(self) -> TaskKind:
        """Match or mismatch."""
        return "classification"

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their folder, and everything else."""
        files = {split: split_identity(Path(self.path), split) for split in SPLITS}
        return {**self.model_dump(mode="json", exclude={"path"}), "files": files}

    def used(self, told: dict[str, list[Told]]) -> tuple[list[str], dict[str, list[Told]]]:
        """The relations in use, sorted, and the texts of each split that tell of no other.

        Raises:
            InputError: there are no such relations.
        """
        names = {split: _relations_of(rows) for split, rows in told.items()}
        known = (
            names["train"] & names["dev"] & names["test"]
            if self.relations == "shared"
            else names["train"] | names["dev"]
        )
        if not known:
            raise InputError(
                f"no relation of {self.path} occurs in train, dev and test; use 'relations: unfiltered', or "
                "give other files"
            )
        used = {s: [t for t in rows if t.relations <= known] for s, rows in told.items()}
        return sorted(known), used

    def build(self) -> GraphCorpus:
        """Read the texts, leave out what is in two splits, draw matches and exchange their texts.

        Raises:
            InputError: a file is missing or broken, the splits share no relation, one has too few texts, or
                what is merged in one is the graph or the text of another.
        """
        told = {split: read_split(Path(self.path), split) for split in SPLITS}
        relations, used = self.used(told)
        matches, n_twice = _in_one_split(used)
        seen: dict[object, str] = {}
        graphs, cases = GraphCollector(len(relations)), list[Case]()
        for split, n_cases in zip(SPLITS, (self.n_train, self.n_dev, self.n_test), strict=True):
            # Every split has its own random stream; spelt out, so that a case does not change if the
            # canonical form of keys does.
            draw = random.Random(f"{split} merged={self.merged} n={n_cases} seed={self.seed}")
            ordered = sorted(matches[split], key=lambda match: _hash(self.seed, match))
            where = f"the {split} split of {self.path}"
            drawn = draw_matches(ordered, self.merged, n_cases // 4, draw, where, _shown)
            told_of = [pair for one, other in drawn for pair in _all_four(one, other)]
            draw.shuffle(told_of)
            number = {relation: at for at, relation in enumerate(relations)}
            for graph, text, label in told_of:
                _require_new(seen, split, graph, text, self.path)
                item = _item(graphs, number, graph, text, self.linking)
                cases.append(Case(split, (item,), label))
        return assemble(
            "classification",
            cases,
            graphs,
            relations,
            label_names=CLASS_NAMES,
            left_out={
                "texts_with_other_relations": sum(map(len, told.values()))
                - sum(map(len, used.values())),
                "texts_of_two_splits": n_twice,
            },
        )


def _relations_of(told: Sequence[Told]) -> set[str]:
    return set(chain.from_iterable(one.relations for one in told))


def _in_one_split(used: dict[str, list[Told]]) -> tuple[dict[str, list[Match]], int]:
    """The texts of each split that no later split has, nor its triples; and how many there were not."""
    texts, graphs = set[str](), set[frozenset[RawTriple]]()
    kept: dict[str, list[Match]] = {}
    n_twice = 0
    for split in reversed(SPLITS):
        own = [t for t in used[split] if t.text not in texts and _named(t.triples) not in graphs]
        n_twice += len(used[split]) - len(own)
        kept[split] = list(dict.fromkeys(Match((one.triples,), (one.text,)) for one in own))
        texts.update(t.text for t in used[split])
        graphs.update(_named(t.triples) for t in used[split])
    return kept, n_twice


def _require_new(seen: dict[object, str], split: str, graph: Match, text: str, path: str) -> None:
    """Neither graph nor text of a case is in another split. Single ones are not, but merged ones may be."""
    named = _named(graph.triples)
    for what, found, shown in (
        ("graph", named, "; ".join(" | ".join(triple) for triple in graph.triples)),
        ("text", text, text),
    ):
        other = seen.setdefault(found, split)
        if other != split:
            raise InputError(
                f"the {what} {quoted(shown)} would be in the splits {other} and {split} of the pairs made of "
                f"{path}: several texts merged in one are the {what} of the other; take another seed, or set "
                "merged: [1]"
            )


def _named(triples: Iterable[RawTriple]) -> frozenset[RawTriple]:
    """A graph by the labels of its nodes, whatever their names are."""
    return frozenset(map(_shown, triples))


def _shown(triple: RawTriple) -> RawTriple:
    """By labels."""
    head, name, tail = triple
    return label_of(head), name, label_of(tail)


def _hash(seed: int, match: Match) -> str:
    """Orders texts whatever the order of the files."""
    written = f"{seed}:{match.text}:{sorted(match.triples)}"
    return hashlib.sha256(written.encode()).hexdigest()


def _all_four(one: Match, other: Match) -> list[tuple[Match, str, int]]:
    """Graph, text and label: both matches, and both with the text of the other."""
    return [(one, one.text, 1), (other, other.text, 1), (one, other.text, 0), (other, one.text, 0)]


def _item(
    graphs: GraphCollector, number: dict[str, int], match: Match, text: str, linking: str
) -> Item:
    """A text with the graph of a match; nodes with the same label are one node."""
    nodes: dict[str, int] = {}
    triples = [
        (
            nodes.setdefault(label_of(head), len(nodes)),
            number[relation],
            nodes.setdefault(label_of(tail), len(nodes)),
        )
        for head, relation, tail in match.triples
    ]
    queries = mentioned(list(nodes), text) if linking == "label_in_text" else ()
    return Item(text, graphs.add(list(nodes), triples, queries=queries))
