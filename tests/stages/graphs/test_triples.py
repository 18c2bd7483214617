"""Knowledge graphs from tables of triples and from ConceptNet's assertions; merged relations."""

import gzip
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.graphs.knowledge.conceptnet import ConceptNetGraph
from permafrost.stages.graphs.knowledge.triples import TriplesGraph
from permafrost.stages.graphs.knowledge_graph import KNOWLEDGE, KnowledgeGraph
from permafrost.stages.graphs.node_types import n_relations
from permafrost.stages.graphs.relation_table import (
    MERGED,
    MERGED_WORDS,
    relation_rows,
    relation_words,
)
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.real_files import DATA, needs_data
from tests.stages.graphs.small_knowledge import TRIPLES, write_triples


def triples(graph: KnowledgeGraph) -> list[tuple[str, str, str]]:
    columns = (graph.heads.tolist(), graph.relation.tolist(), graph.tails.tolist())
    return [
        (graph.labels[h], graph.relations[r], graph.labels[t])
        for h, r, t in zip(*columns, strict=True)
    ]


def read(path: Path, **fields: Any) -> KnowledgeGraph:
    return TriplesGraph(path=str(path), **fields).read(SilentProgress())


def test_raw_triples_come_once_and_sorted_without_loops_and_surrounding_space(
    tmp_path: Path,
) -> None:
    rows = [*TRIPLES, TRIPLES[0], (" dog ", "IsA", "animal"), ("dog", "IsA", "dog")]
    graph = read(write_triples(tmp_path, rows))
    assert sorted(triples(graph)) == sorted(TRIPLES)
    assert list(graph.labels) == sorted({end for h, _, t in TRIPLES for end in (h, t)})
    assert graph.relations == ("AtLocation", "HasA", "IsA", "MotivatedByGoal")
    again = read(write_triples(tmp_path, rows[::-1]))
    assert triples(again) == triples(graph), "the order of the rows does not matter"


def test_merged_relations_change_direction_fall_together_and_drop_out(tmp_path: Path) -> None:
    rows = [
        *TRIPLES,
        ("tree", "PartOf", "park"),  # what park HasA tree becomes
        ("stone", "NotIsA", "animal"),
    ]
    graph = read(write_triples(tmp_path, rows), relations="merged")
    assert graph.relations == MERGED
    assert ("tree", "partof", "park") in triples(graph)
    assert ("hunger", "causes", "eat") in triples(graph)
    assert len(triples(graph)) == len(TRIPLES)
    assert "stone" not in list(graph.labels), "a node of dropped triples alone is no node"


def test_17_merged_relations_make_38_of_edges_and_15_make_34() -> None:
    assert (n_relations(len(MERGED)), n_relations(15)) == (38, 34)
    assert len(MERGED_WORDS) == len({*MERGED}) == 17
    assert {row.merged for row in relation_rows()} == {*MERGED, ""}


def test_templates_are_the_wording_of_merged_relations() -> None:
    assert relation_words(MERGED) == relation_words(MERGED, "names") == MERGED_WORDS
    words = dict(zip(MERGED, relation_words(MERGED, "templates"), strict=True))
    assert len({*words.values()}) == 17
    # QA-GNN, utils/conceptnet.py.
    assert (words["antonym"], words["isa"], words["receivesaction"]) == (
        "is the antonym of", "is a kind of", "is"
    )  # fmt: skip
    assert relation_words(("isA",), "templates") == ()
    for kind in ("triples", "conceptnet"):
        config = {"kind": kind, "path": "a.csv", "relations": "merged", "wording": "templates"}
        assert KNOWLEDGE.validate(config).words == "templates"
        with pytest.raises(
            ValueError, match=r"wording is templates.*relations is raw; set relatio"
        ):
            KNOWLEDGE.validate({**config, "relations": "raw"})


def test_neighbours_are_those_of_either_direction_each_once(tmp_path: Path) -> None:
    graph = read(write_triples(tmp_path, [("a", "r", "b"), ("b", "s", "a"), ("c", "r", "a")]))
    offsets, others = graph.neighbours
    assert [others[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [
        [1, 2],
        [0],
        [0],
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.tsv.gz"])
def test_text_tables_packed_or_not_hold_the_same_graph(tmp_path: Path, name: str) -> None:
    separator = "\t" if ".tsv" in name else ","
    lines = [("subject", "predicate", "object"), *TRIPLES]
    text = "\n".join(separator.join(line) for line in lines) + "\n"
    opened = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write(text)
    assert triples(read(tmp_path / name)) == triples(read(write_triples(tmp_path)))


def weighted(folder: Path, weights: list[Any]) -> Path:
    rows = {"head": ["a", "b"], "relation": ["r", "r"], "tail": ["c", "d"], "weight": weights}
    pq.write_table(pa.table(rows), folder / "w.parquet")
    return folder / "w.parquet"


def test_triples_below_the_least_weight_are_left_out(tmp_path: Path) -> None:
    path = weighted(tmp_path, [0.5, 2.0])
    assert triples(read(path, min_weight=1)) == [("b", "r", "d")]
    assert len(triples(read(path))) == 2


def test_rows_are_counted_among_the_triples_that_are_kept(tmp_path: Path) -> None:
    rows = {"head": ["a", " "], "relation": ["r", "r"], "tail": ["c", "d"], "weight": [0.5, 2.0]}
    pq.write_table(pa.table(rows), tmp_path / "w.parquet")
    says = r"row 1 of the triples of .*w\.parquet with a weight of 1 or more"
    with pytest.raises(InputError, match=says):
        read(tmp_path / "w.parquet", min_weight=1)


def test_facts_name_the_bytes_not_the_file(tmp_path: Path) -> None:
    path = write_triples(tmp_path)
    facts = TriplesGraph(path=str(path)).facts()
    moved = path.rename(tmp_path / "moved.parquet")
    assert TriplesGraph(path=str(moved)).facts() == facts
    assert "language" not in facts, "keys of before the field"
    assert TriplesGraph(path=str(moved), language="de").facts() == {**facts, "language": "de"}
    merged = TriplesGraph(path=str(moved), relations="merged").facts()
    assert ["HasA", "partof", "reversed"] in merged["table"]
    assert facts["table"] is None


@pytest.mark.parametrize(
    ("rows", "fields", "says"),
    [
        ([("a", "r", None), ("a", "r", "b")], {}, "row 1 .* has no text in column 'tail'"),
        ([("a", "r", "b"), (" ", "r", "b")], {}, "row 2 .* blank text"),
        ([(1, "r", "b")], {}, "column 'head' .* holds int64, expected text"),
        ([("a", "Eats", "b")], {"relations": "merged"}, "lacks: 'Eats'"),
        (
            [("a", "NotIsA", "b"), ("a", "NotIsA", "a"), ("a", "IsA", "a")],
            {"relations": "merged"},
            "none of the 3 triples .* is left: 2 with relations that the table of merged relations drops "
            r"\('NotIsA'\), 1 from a node to itself; take the relations as they are",
        ),
        (
            [("a", "r", "a")],
            {},
            "none of the 1 triples of .* is left: 1 from a node to itself; give another file",
        ),
        ([("a", "^r", "b")], {}, r"has the relation '\^r'; names that begin with \^ are"),
        ([("a", "query entity", "b")], {}, "has the relation 'query entity'; .* another name"),
        ([("a", "r", "b")], {"head": "from"}, "no column 'from'"),
        ([("a", "r", "b")], {"min_weight": 1}, "no column 'weight'"),
    ],
)
def test_faulty_triples_are_refused(
    tmp_path: Path, rows: Any, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        read(write_triples(tmp_path, rows), **fields)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), None])
def test_a_weight_that_is_no_number_is_refused_with_its_row(tmp_path: Path, weight: Any) -> None:
    with pytest.raises(InputError, match=r"row 2 .* has the weight .* \(1 such of 2 rows\)"):
        read(weighted(tmp_path, [1.0, weight]), min_weight=0.5)
    assert len(triples(read(weighted(tmp_path, [1.0, weight])))) == 2, "weights that nobody reads"


def test_files_without_triples_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    (tmp_path / "head.csv").write_text("head,relation,tail\n")
    (tmp_path / "broken.csv.gz").write_bytes(b"head,relation,tail\na,r,b\n")
    (tmp_path / "other.gz").write_bytes(b"x")
    # More than is read for the header.
    packed = gzip.compress(b"head,relation,tail\n" + b"a,r,b\n" * 3_000_000, compresslevel=1)
    (tmp_path / "cut.csv.gz").write_bytes(packed[:-5])
    with pytest.raises(InputError, match="is empty"):
        TriplesGraph(path=str(tmp_path / "empty.csv")).facts()
    for name, says in (
        ("head.csv", "no triples"),
        ("broken.csv.gz", "packed with gzip"),
        ("cut.csv.gz", "packed with gzip"),
        ("other.gz", "extension '.gz'"),
        ("none.csv.gz", "there is no file"),
    ):
        with pytest.raises(InputError, match=says):
            read(tmp_path / name)


def assertion(start: str, relation: str, end: str, about: str = '{"weight": 1.0}') -> str:
    return f"/a/[/r/{relation}/,{start}/,{end}/]\t/r/{relation}\t{start}\t{end}\t{about}"


ASSERTIONS = [
    assertion("/c/en/dog", "IsA", "/c/en/pet/n"),
    assertion("/c/en/dog/n/wn/animal", "IsA", "/c/en/pet", '{"weight": 2.0}'),
    assertion("/c/en/ice_cream/n", "AtLocation", "/c/en/park"),
    assertion("/c/en/dog", "Synonym", "/c/de/hund"),
    assertion("/c/fr/chien", "IsA", "/c/fr/animal"),
    assertion("/c/en/3d", "RelatedTo", "/c/en/film"),
    assertion("/c/en/dog", "ExternalURL", "http://example.org/c/en/dog"),
    assertion("/c/en/dog", "HasA", "/c/en/tail", '{"weight": 0.25}'),
]


def conceptnet(folder: Path, lines: list[str] = ASSERTIONS, **fields: Any) -> KnowledgeGraph:
    with gzip.open(folder / "a.csv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return ConceptNetGraph(path=str(folder / "a.csv.gz"), **fields).read(SilentProgress())


def test_conceptnet_gives_the_english_assertions_without_senses(tmp_path: Path) -> None:
    graph = conceptnet(tmp_path)
    found = [("dog", "isa", "pet"), ("ice cream", "atlocation", "park"), ("tail", "partof", "dog")]
    assert sorted(triples(graph)) == found
    assert graph.relations == MERGED
    (tmp_path / "a.csv").write_text("\n".join(ASSERTIONS) + "\n")
    unpacked = ConceptNetGraph(path=str(tmp_path / "a.csv")).read(SilentProgress())
    assert triples(unpacked) == triples(graph)


def test_marks_on_letters_are_letters(tmp_path: Path) -> None:
    rows = [
        assertion("/c/hi/हिन्दी", "IsA", "/c/hi/भाषा"),
        assertion("/c/hi/1भाषा", "IsA", "/c/hi/भाषा"),
    ]
    assert triples(conceptnet(tmp_path, rows, language="hi")) == [("हिन्दी", "isa", "भाषा")]


def test_conceptnets_options(tmp_path: Path) -> None:
    assert len(triples(conceptnet(tmp_path, min_weight=1))) == 2
    raw = triples(conceptnet(tmp_path, relations="raw", terms="all"))
    assert ("dog", "HasA", "tail") in raw
    assert ("3d", "RelatedTo", "film") in raw
    assert triples(conceptnet(tmp_path, language="fr")) == [("chien", "isa", "animal")]
    config = KNOWLEDGE.validate({"kind": "conceptnet", "path": str(tmp_path / "a.csv.gz")})
    assert set(config.facts()) >= {"sha256", "table", "min_weight", "language", "terms"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/a/x\t/r/IsA\t/c/en/a\t/c/en/b", "line 2 .* it has 4 cells"),
        (assertion("/c/en/a", "IsA", "/c/en/b", '{"weight": NaN}'), "weight is nan"),
        (assertion("/c/en/a", "IsA", "/c/en/b", "{}"), "no 'weight'"),
        (assertion("/c/en/a", "IsA", "/c/en/b", "{"), "not an assertion"),
        (assertion("/c/en/a", "IsA", "/c/en/b", "[1]"), "not an assertion"),
        (assertion("/c/en/a", "Eats", "/c/en/b"), "lacks: 'Eats'"),
    ],
)
def test_lines_that_are_no_assertions_are_refused(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        conceptnet(tmp_path, [ASSERTIONS[0], line])


def test_a_file_of_another_language_or_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no assertion between two terms of the language 'ja'"):
        conceptnet(tmp_path, language="ja")
    path = tmp_path / "a.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cannot be read: .*; get the file again"):
        ConceptNetGraph(path=str(path)).read(SilentProgress())


@needs_data
def test_the_tables_counts_are_those_of_cn100k() -> None:
    path = DATA / "conceptnet_cn100k/train.parquet"
    counted = Counter(pq.read_table(path).column("relation").to_pylist())
    assert {row.raw: row.n_cn100k for row in relation_rows() if row.n_cn100k} == counted
    graph = read(path, relations="merged")
    dropped = sum(row.n_cn100k for row in relation_rows() if not row.merged)
    assert dropped == 626
    # Less by what is dropped, loops, and what the file or the merging has twice.
    assert len(graph.heads) == 98_797 <= 100_000 - dropped


def test_the_table_is_sorted_and_has_every_relation_once() -> None:
    rows = relation_rows()
    order = {name: n for n, name in enumerate((*MERGED, ""))}
    assert [order[row.merged] for row in rows] == sorted(order[row.merged] for row in rows)
    assert len({row.raw.casefold() for row in rows}) == len(rows)
    assert [row.raw for row in rows if row.is_reversed] == ["MotivatedByGoal", "HasA"]
    assert all(row.n_cn100k >= 0 for row in rows)
