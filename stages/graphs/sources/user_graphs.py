"""A user's own graphs: a table of nodes, a table of edges, and a table of what is asked of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, field_validator

from permafrost.stages.corpus.columns import LABELLED_SPLITS, Classification, TaskKind
from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.rows import checked_rows
from permafrost.stages.corpus.search_files import require_usual_grade
from permafrost.stages.corpus.table_files import (
    column_names,
    file_identity,
    read_columns,
)
from permafrost.stages.corpus.text_format import UTF_8, TextFormat
from permafrost.stages.corpus.values import (
    numbers_of,
    texts_of,
    zeros_and_ones,
)
from permafrost.stages.graphs.assembling import Case, Item, Judgement, Searched, assemble
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.graph_tables import OPTIONAL_COLUMNS, filled_ids, read_graphs
from permafrost.stages.graphs.relation_names import trimmed_names
from permafrost.stages.graphs.relation_words import in_words
from permafrost.stages.graphs.source import GraphSource
from permafrost.stages.graphs.table_form import TableForm
from permafrost.stages.graphs.table_items import UsedGraphs
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_FILES = ("nodes", "edges", "examples")
_SIDES = {
    "classification": (("text", "graph"),),
    "multiple_choice": (("text", "graph"),),
    "retrieval": (("query", "query_graph"), ("document", "document_graph")),
}
"""Columns of the texts of an example, each with that of its graph."""


class UserGraphs(TableForm, GraphSource):
    """Graphs from tables in parquet, jsonl, csv or tsv.

    ```yaml
    kind: graphs
    nodes: data/nodes.csv        # graph, node, text; perhaps type, relevance
    edges: data/edges.csv        # graph, source, target, relation
    examples: data/examples.csv  # split, text, graph, label
    ```

    Every graph gets a query node, which starts from the text of its example; one that the tables have is
    replaced by it. A graph may do without edges; a text without a graph has an empty cell. What no example
    uses is left out, and a triple that is there twice counts once.
    """

    kind: Literal["graphs"] = "graphs"
    nodes: str
    """File with the columns `graph`, `node` and `text`, and perhaps `type` (query entity, answer entity,
    other, query node, or their numbers 0 to 3) and `relevance` (a number)."""
    edges: str
    """File with the columns `graph`, `source`, `target` (ids of nodes) and `relation`."""
    examples: str
    """File with the column `split` (train, dev, test) and those of the task."""
    task: Literal["classification", "multiple_choice", "retrieval"] = "classification"
    """`classification`: text, graph, label. `multiple_choice`: the same with a column `case`; its rows are
    the choices, and label is 1 for the right one. `retrieval`: query, query_graph, document, document_graph,
    label; 0 or less for a document that is judged irrelevant. All documents of the table are searched."""
    relations: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The only relations of edges, in this order; those of the table, sorted, if not given."""
    relation_words: dict[str, str] = Field(default_factory=dict)
    """Relations in words, for descriptions; others have their names split (birthPlace: birth place)."""
    linking: Literal["label_in_text", "none"] = "label_in_text"
    """`label_in_text`: besides the nodes whose type says so, every node whose label occurs in the text is an
    entity of the query. A text without any has a query node without edges."""

    @field_validator("relations")
    @classmethod
    def _each_once(cls, relations: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if relations is None else trimmed_names(relations)

    @field_validator("relation_words")
    @classmethod
    def _of_trimmed_names(cls, words: dict[str, str]) -> dict[str, str]:
        return dict(zip(trimmed_names([*words], "relation_words"), words.values(), strict=True))

    @property
    def task_kind(self) -> TaskKind:
        """A retrieval has pairs without labels."""
        return "unlabelled" if self.task == "retrieval" else self.task

    def facts(self) -> dict[str, Any]:
        """Digests of the files instead of their names, and everything that affects how they are read."""
        files = {name: file_identity(Path(getattr(self, name))) for name in _FILES}
        names = column_names(Path(self.nodes), self._formats()(Path(self.nodes)))
        columns = [name for name in OPTIONAL_COLUMNS if name in names]
        usual = {
            name
            for name, default in (("delimiter", None), ("encoding", UTF_8))
            if getattr(self, name) == default
        }
        return {
            **self.model_dump(mode="json", exclude={*_FILES, *usual}),
            "files": files,
            **({"node_columns": columns} if columns else {}),
        }

    def _formats(self) -> Callable[[Path], TextFormat]:
        return self.formats({name: getattr(self, name) for name in _FILES})

    def build(self) -> GraphCorpus:
        """Read the tables, check that they go together, and make a case of every example.

        Raises:
            InputError: see `read_graphs`; or an example names an unknown graph or split, a text is blank,
                or a label does not fit the task.
        """
        graphs, relations, n_again = read_graphs(
            Path(self.nodes), Path(self.edges), self.relations, formats=self._formats()
        )
        if unknown := sorted(self.relation_words.keys() - set(relations)):
            raise InputError(
                f"relation_words has {quoted(unknown[0])}, which is no relation here; there are "
                f"{', '.join(map(quoted, relations[:20]))}"
            )
        used = UsedGraphs(graphs, len(relations), self.linking == "label_in_text", self.nodes)
        cases, label_names, searched = self._cases(used)
        return assemble(
            "unlabelled" if self.task == "retrieval" else self.task,
            sorted(cases, key=lambda case: LABELLED_SPLITS.index(case.split)),
            used.collector,
            relations,
            label_names=label_names,
            relation_words=[self.relation_words.get(r) or in_words(r) for r in relations],
            searched=searched,
            left_out={
                "graphs_without_example": len(graphs.keys() - used.names),
                "repeated_triples": n_again,
            },
        )

    def _cases(self, used: UsedGraphs) -> tuple[list[Case], tuple[str, ...], Searched | None]:
        """The cases in the order of the table, names of classes, and what is searched."""
        path, where, sides = Path(self.examples), self.examples, _SIDES[self.task]
        keys = ["case"] if self.task == "multiple_choice" else []
        texts, graphs = ([side[i] for side in sides] for i in (0, 1))
        wanted = ["split", *texts, *graphs, "label", *keys]
        needed = (
            f"Examples of {quoted(self.task)} have the columns {', '.join(wanted)}, by these names"
        )
        how = self._formats()(path)
        require_columns(column_names(path, how), wanted, where, needed)
        table = read_columns(path, ["split", *texts], ["label"], ids=[*graphs, *keys], how=how)
        splits = _splits(table, where)
        items = [used.items(table, text, graph, where) for text, graph in sides]
        match self.task:
            case "classification":
                labels, names = _classes(table, splits, where)
                rows = zip(splits, items[0], labels, strict=True)
                return [Case(s, (item,), label) for s, item, label in rows], names, None
            case "multiple_choice":
                return _choices(table, splits, items[0], where), (), None
            case "retrieval":
                judged = [
                    Judgement(*row)
                    for row in zip(splits, *items, _grades(table, where), strict=True)
                ]
                _require_judged_once(judged, where)
                cases = [Case(j.split, (j.query, j.document), j.grade) for j in judged]
                return cases, (), Searched(list(dict.fromkeys(items[1])), judged)


def _require_judged_once(judged: Sequence[Judgement], where: str) -> None:
    seen: dict[tuple[str, Item, Item], int] = {}
    for row, one in enumerate(judged, start=1):
        earlier = seen.setdefault((one.split, one.query, one.document), row)
        if earlier != row:
            raise InputError(
                f"row {row} of {where} judges a document for a query that row {earlier} has judged for it "
                f"(grades {one.grade} and {judged[earlier - 1].grade}); keep one of the rows"
            )


def _splits(table: pa.Table, where: str) -> list[str]:
    splits = texts_of(table, "split", where)
    for row, split in enumerate(splits, start=1):
        if split not in LABELLED_SPLITS:
            raise InputError(
                f"row {row} of {where} is of the split {quoted(split)}, which is not one of "
                f"{', '.join(LABELLED_SPLITS)}; rename it"
            )
    return splits


def _classes(
    table: pa.Table, splits: Sequence[str], where: str
) -> tuple[list[int], tuple[str, ...]]:
    """The class of every example, and the names of the classes."""
    names = [split for split in LABELLED_SPLITS if split in splits]
    rows = {name: [i for i, split in enumerate(splits) if split == name] for name in names}
    values, label_names = Classification().label_values(
        [
            checked_rows(
                table.take(rows[n]), (["text"], ["label"], []), n, f"the {n} rows of {where}"
            )
            for n in names
        ]
    )
    labels = [0] * len(splits)
    for name, of_split in zip(names, values, strict=True):
        assert of_split is not None, "a classification has labels"
        for row, label in zip(rows[name], of_split.tolist(), strict=True):
            labels[row] = int(label)
    return labels, label_names


def _choices(
    table: pa.Table, splits: Sequence[str], items: Sequence[Item], where: str
) -> list[Case]:
    """The cases, each the rows of one id, in the order of their first rows."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(filled_ids(table, "case", where)):
        rows.setdefault(name, []).append(row)
    right = zeros_and_ones(table, "label", where)
    cases: list[Case] = []
    for name, of_case in rows.items():
        answers = [at for at, row in enumerate(of_case) if right[row]]
        if len(of_case) < 2 or len(answers) != 1 or len({splits[row] for row in of_case}) > 1:
            raise InputError(
                f"the case {quoted(name)} of {where} has {len(of_case)} choices, of which {len(answers)} are "
                f"right, in {' and '.join(sorted({splits[row] for row in of_case}))} (its first row is "
                f"{of_case[0] + 1}); give a case two choices or more in one split, one of them right"
            )
        cases.append(Case(splits[of_case[0]], tuple(items[row] for row in of_case), answers[0]))
    return cases


def _grades(table: pa.Table, where: str) -> list[int]:
    grades = numbers_of(table, "label", where)
    for row, grade in enumerate(grades, start=1):
        if not grade.is_integer():
            raise InputError(
                f"row {row} of {where} has the grade {grade:g} in column 'label'; grades are whole numbers, "
                "0 for a document that is irrelevant"
            )
        require_usual_grade(grade, row, where)
    return [int(grade) for grade in grades]
