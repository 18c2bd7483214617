"""Pairs of graphs and texts: which are used, matches and mismatches, and that no surface tells them apart."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.mentions import mentioned
from permafrost.stages.graphs.sources.webnlg import WebnlgPairs
from permafrost.stages.graphs.webnlg_files import label_of, read_split
from permafrost.stages.scoring.controls import BagOfWordsControl, LengthControl, run_control
from permafrost.storage.errors import InputError
from tests.real_files import DATA, needs_data
from tests.stages.graphs.small_webnlg import (
    ONLY_IN,
    RELATIONS,
    entries,
    write_release,
    write_tables,
)

SIZES = {"n_train": 48, "n_dev": 24, "n_test": 12}


def pairs(folder: Path, **fields: Any) -> WebnlgPairs:
    return WebnlgPairs(**{"path": str(folder), **SIZES, **fields})


@pytest.fixture
def corpus(tmp_path: Path) -> GraphCorpus:
    return pairs(write_tables(tmp_path)).build()


def rows_of(corpus: GraphCorpus) -> list[tuple[str, int, str, tuple[tuple[str, str, str], ...]]]:
    """Split, label, text and triples of every case."""
    items = corpus.items.to_pylist()
    return [
        (
            case["split"],
            case["label"],
            corpus.texts[items[case["items"][0]]["text"]],
            tuple(corpus.triples(items[case["items"][0]]["graph"])),
        )
        for case in corpus.cases.to_pylist()
    ]


def test_relation_60_the_sizes_are_as_asked_and_half_of_each_split_are_matches(
    corpus: GraphCorpus,
) -> None:
    counts = Counter((split, label) for split, label, _, _ in rows_of(corpus))
    halves = {(split, label): SIZES[f"n_{split}"] // 2 for split in ONLY_IN for label in (0, 1)}
    assert counts == halves
    assert corpus.task == "classification"
    assert corpus.label_names == ("mismatch", "match")
    assert corpus.cases.column("label").to_pylist() == corpus.examples.column("label").to_pylist()


def test_relation_60_only_relations_of_all_splits_and_whole_texts_are_left_out(
    corpus: GraphCorpus,
) -> None:
    assert corpus.relations == tuple(sorted(RELATIONS))
    assert corpus.n_relations == 2 * (len(RELATIONS) + 2)
    assert not any(name in text for text in corpus.texts for name in ONLY_IN.values())
    assert corpus.left_out["texts_with_other_relations"] == 3 * 6


def test_relation_60_a_mismatch_tells_of_nothing_of_its_graph(corpus: GraphCorpus) -> None:
    for _, label, text, triples in rows_of(corpus):
        told = [head in text and tail in text for head, _, tail in triples]
        assert all(told) if label else not any(told)


def test_every_text_and_every_graph_is_once_in_each_class(corpus: GraphCorpus) -> None:
    rows = rows_of(corpus)
    for column in (2, 3):
        seen = Counter((row[column], row[1]) for row in rows)
        assert set(seen.values()) == {1}
        assert {value for value, label in seen if label} == {v for v, label in seen if not label}
    # Together with the text, the number of triples says nothing either: partners have the same.
    sizes = {(text, label): len(triples) for _, label, text, triples in rows}
    assert all(sizes[text, 0] == sizes[text, 1] for text, _ in sizes)


def test_no_text_and_no_triple_is_in_two_splits(corpus: GraphCorpus) -> None:
    texts: dict[str, set[str]] = {}
    triples: dict[object, set[str]] = {}
    for split, _, text, graph in rows_of(corpus):
        texts.setdefault(text, set()).add(split)
        for triple in graph:
            triples.setdefault(triple, set()).add(split)
    assert {len(splits) for splits in (*texts.values(), *triples.values())} == {1}


def single(split: str, *triples: str) -> tuple[str, list[str]]:
    return f"{split} tells of {' and '.join(triples)}.", [
        f"{t} | country | of {t}" for t in triples
    ]


def test_a_graph_that_merging_makes_equal_to_one_of_another_split_is_refused(
    tmp_path: Path,
) -> None:
    """{a} and {b} of train are the graph {a, b} of dev, though no text of one is in the other."""
    train = [single("train", name) for name in "abcd"]
    unions = [single("dev", *two) for two in itertools.combinations("abcd", 2)]
    others = [single("dev", f"e{i}", f"f{i}") for i in range(4)]
    test = [single("test", f"g{i}", f"h{i}") for i in range(8)]
    write_tables(tmp_path, train=train, dev=[*unions, *others], test=test)
    sizes = {"n_train": 8, "n_dev": 24, "n_test": 8, "merged": (1, 2)}
    with pytest.raises(
        InputError, match=r"the graph '. \| country \| of .; . \| country.*train and dev"
    ):
        pairs(tmp_path, **sizes).build()
    write_tables(tmp_path, train=train, dev=[single("dev", f"e{i}", f"f{i}") for i in range(20)])
    assert pairs(tmp_path, **{**sizes, "n_test": 12}).build().counts()["n_texts"] > 0


def test_a_text_that_merging_makes_equal_to_one_of_another_split_is_refused(
    tmp_path: Path,
) -> None:
    def rows(name: str, texts: list[str]) -> list[tuple[str, list[str]]]:
        return [(text, [f"{name}{i} | country | of {name}{i}"]) for i, text in enumerate(texts)]

    halves = ["A", "B", "C", "D"]
    wholes = [f"{one} {other}" for one in halves for other in halves if one != other]
    write_tables(
        tmp_path,
        train=rows("t", halves),
        dev=rows("d", wholes),
        test=rows("s", [f"S{i}" for i in range(8)]),
    )
    with pytest.raises(
        InputError, match=r"the text '[A-D] [A-D]' would be in the splits train and"
    ):
        pairs(tmp_path, n_train=8, n_dev=40, n_test=8, merged=(1, 2)).build()


def test_as_many_parts_are_merged_as_asked(tmp_path: Path) -> None:
    write_tables(tmp_path)
    for merged in ((1,), (2, 3)):
        corpus = pairs(tmp_path, merged=merged).build()
        parts = Counter(text.count(".") for *_, text, _ in rows_of(corpus))
        assert set(parts) == set(merged)
        assert max(parts.values()) - min(parts.values()) <= 3 * 4


@pytest.mark.parametrize("control", [LengthControl(), BagOfWordsControl(c=(1.0,))])
def test_a_control_sits_at_chance_exactly(
    control: LengthControl | BagOfWordsControl, corpus: GraphCorpus
) -> None:
    found = run_control(control, corpus).metrics
    assert (found["dev"], found["test"], found["overlap"]) == (0.5, 0.5, 0.0)


def test_tables_and_a_release_give_the_same_corpus(tmp_path: Path) -> None:
    of_tables = pairs(write_tables(tmp_path / "tables"))
    of_release = pairs(write_release(tmp_path / "release"))
    assert of_tables.build() == of_release.build()
    assert of_tables.facts() != of_release.facts()


def test_the_order_of_the_files_does_not_matter_and_the_seed_does(tmp_path: Path) -> None:
    first = pairs(write_tables(tmp_path / "a")).build()
    turned = {split: entries(split)[::-1] for split in ONLY_IN}
    assert pairs(write_tables(tmp_path / "b", **turned)).build() == first
    assert pairs(tmp_path / "a", seed=1).build() != first


def test_what_is_in_two_splits_is_left_out_of_the_earlier_one(tmp_path: Path) -> None:
    (text, triples), (other, others), *_ = entries("dev")
    again = [*entries("train"), (text, ["A | country | B"]), ("Another text.", others)]
    # The same labels under other names are the same graph.
    renamed = [triple.replace("Person_", "Person ") for triple in others]
    assert renamed != others
    again.append(("A third text.", renamed))
    corpus = pairs(write_tables(tmp_path, train=again)).build()
    assert corpus.left_out["texts_of_two_splits"] == 3
    for split, _, told, _ in rows_of(corpus):
        assert split != "train" or not ("Another text." in told or text in told)
    assert triples
    assert other


def test_a_text_of_several_graphs_is_a_mismatch_to_none_of_them(tmp_path: Path) -> None:
    """Two graphs with one text each, and a text that both have."""
    rows = [
        *[(f"{side} text {i}.", [f"{side} {i} | country | X"]) for i in range(8) for side in "AB"],
        *[(f"both {i}.", [f"{side} {i} | country | X"]) for i in range(8) for side in "AB"],
    ]
    write_tables(tmp_path, train=rows, dev=entries("dev"), test=entries("test"))
    for seed in range(5):
        corpus = pairs(tmp_path, n_train=16, merged=(1,), seed=seed, relations="unfiltered").build()
        for split, label, text, triples in rows_of(corpus):
            if split == "train" and not label and text.startswith("both"):
                assert text.split()[1].rstrip(".") != triples[0][0].split()[1]


def test_a_text_is_no_mismatch_to_a_graph_that_looks_like_its_own(tmp_path: Path) -> None:
    names = {"first": "Aarhus_{}", "second": '"Aarhus {}"'}
    rows = [
        (f"{which} {i}.", [f"{name.format(i)} | country | X"])
        for i in range(4)
        for which, name in names.items()
    ]
    write_tables(tmp_path, train=rows, dev=entries("dev"), test=entries("test"))
    for seed in range(10):
        corpus = pairs(tmp_path, n_train=8, merged=(1,), seed=seed, relations="unfiltered").build()
        for split, label, text, triples in rows_of(corpus):
            if split == "train":
                is_own = triples[0][0] == f"Aarhus {text.split()[1].rstrip('.')}"
                assert is_own == bool(label)


def test_unfiltered_has_the_relations_of_train_and_dev(tmp_path: Path) -> None:
    corpus = pairs(write_tables(tmp_path), relations="unfiltered").build()
    assert corpus.relations == tuple(sorted((*RELATIONS, "onlyTrain", "onlyDev")))
    assert corpus.left_out["texts_with_other_relations"] == 6


def test_the_query_node_is_joined_to_what_the_text_names_or_to_nothing(tmp_path: Path) -> None:
    write_tables(tmp_path)
    linked = pairs(tmp_path).build()
    bare = pairs(tmp_path, linking="none").build()
    to_query = len(linked.relations)
    items = linked.items.column("graph").to_numpy()
    labels = linked.cases.column("label").to_numpy()
    for graph, label in zip(items, labels, strict=True):
        edges = linked.graphs.edges_of(graph)
        n = int((linked.graphs.edge_relation[edges] == to_query).sum())
        nodes = linked.graphs.nodes_of(graph)
        assert n == (nodes.stop - nodes.start - 1 if label else 0)
    assert not (bare.graphs.edge_relation == to_query).any()
    assert np.array_equal(bare.cases.column("label").to_numpy(), labels)
    assert [t for *_, t in rows_of(bare)] == [t for *_, t in rows_of(linked)]


@pytest.mark.parametrize(
    ("label", "text", "is_there"),
    [
        ("Aarhus Airport", "the AARHUS airport is", True),
        ("4", "it has 42 rooms", False),
        ("42", "it has 42 rooms", True),
        ("Aarhus, Denmark", "in Aarhus, Denmark.", True),
        ("Aarhus, Denmark", "in Aarhus Denmark.", False),
        ("city", "the cityscape", False),
        ("Ağrı", "the AĞRI of", False),
        ("  ", "a text", False),
        ("C++", "written in C++ today", True),
        ("कम", "पानी की कमी है", False),
        ("कमी", "पानी की कमी है", True),
        ("کتاب", "کتاب‌ها", False),
        ("杯子", "杯子在哪里", False),
    ],
)
def test_a_text_names_a_label_by_its_whole_words(label: str, text: str, is_there: bool) -> None:
    assert mentioned(["other", label], text) == ([1] if is_there else [])


@pytest.mark.parametrize(
    ("entity", "label"),
    [
        ("Aarhus_Airport", "Aarhus Airport"),
        ('"Aarhus, Denmark"', "Aarhus, Denmark"),
        ('"5.1"^^xsd:double', "5.1"),
        ('"name"@en', "name"),
        ("2702.0", "2702.0"),
        ("_", "_"),
        ('""', '""'),
    ],
)
def test_entities_are_read_as_texts(entity: str, label: str) -> None:
    assert label_of(entity) == label


BROKEN: dict[str, tuple[list[Any], str]] = {
    "two parts": ([("A text.", ["a | b"])], r"row 1 of .*train\.jsonl has the triple 'a \| b'"),
    "a query node's relation": (
        [("A text.", ["a | query entity | b"])],
        r"row 1 of .*train\.jsonl has the relation 'query entity'",
    ),
    "no triples": ([*entries("train"), ("A text.", [])], "row 61 .* has no triples"),
    "no text": ([("  ", ["a | b | c"])], "has the text '  '"),
    "none shared": (
        [("A text.", ["a | b | c"])],
        "no relation of .* occurs in train, dev and test",
    ),
    "too few": (entries("train")[:6], r"the train split of .* has 6 texts .* too few for 48 cases"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_faulty_files_are_refused(name: str, tmp_path: Path) -> None:
    rows, message = BROKEN[name]
    with pytest.raises(InputError, match=message):
        pairs(write_tables(tmp_path, train=rows)).build()


def test_a_folder_without_files_and_broken_xml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a table of train .* nor XML files"):
        pairs(tmp_path / "nothing").facts()
    write_release(tmp_path)
    (tmp_path / "dev" / "1triples" / "dev.xml").write_text("<benchmark>")
    with pytest.raises(InputError, match=r"dev\.xml cannot be read as XML"):
        pairs(tmp_path).build()


@pytest.mark.parametrize(
    "fields", [{"n_train": 6}, {"merged": [1, 1]}, {"merged": []}, {"relations": "some"}]
)
def test_wrong_fields_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WebnlgPairs(path="anywhere", **fields)


@pytest.mark.deep
@needs_data
def test_the_published_set_has_the_papers_sizes_and_tells_nothing_by_its_surface() -> None:
    source = WebnlgPairs(path=str(DATA / "webnlg_v3_en"))
    told = {split: read_split(Path(source.path), split) for split in ONLY_IN}
    relations, used = source.used(told)
    assert {split: len(rows) for split, rows in used.items()} == {
        "train": 25_702, "dev": 3_198, "test": 3_124
    }  # fmt: skip
    others, _ = source.model_copy(update={"relations": "unfiltered"}).used(told)
    assert (len(relations), len(others)) == (161, 372)
    corpus = source.build()
    assert corpus.n_relations == 326
    counts = Counter((row["split"], row["label"]) for row in corpus.cases.to_pylist())
    assert counts == {
        (split, label): n // 2
        for split, n in (("train", 10_000), ("dev", 4_000), ("test", 2_000))
        for label in (0, 1)
    }
    for control in (LengthControl(), BagOfWordsControl(c=(0.1,))):
        found = run_control(control, corpus).metrics
        assert (found["dev"], found["test"], found["overlap"]) == (0.5, 0.5, 0.0)


@pytest.mark.deep
@pytest.mark.night
@needs_data
def test_linked_by_labels_a_rule_without_learning_is_right_nearly_always() -> None:
    """What results on these pairs stand beside; a graph without its text is at chance with `none` only."""
    corpus = WebnlgPairs(path=str(DATA / "webnlg_v3_en")).build()
    named = corpus.graphs.edge_relation == len(corpus.relations)
    graph = np.repeat(np.arange(len(corpus.graphs)), np.diff(corpus.graphs.edge_offsets))
    n_named = np.bincount(graph[named], minlength=len(corpus.graphs))
    labels = corpus.cases.column("label").to_numpy()
    items = np.array([case[0] for case in corpus.cases.column("items").to_pylist()])
    of_case = n_named[corpus.items.column("graph").to_numpy()[items]]
    right = float(((of_case > 0) == labels).mean())
    assert right == pytest.approx(0.944875)
    assert of_case[labels == 1].mean() == pytest.approx(5.913625)
    assert of_case[labels == 0].mean() == pytest.approx(0.1145)
