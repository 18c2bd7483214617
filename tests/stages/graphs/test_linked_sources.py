"""Questions with subgraphs of a knowledge graph, and what linked sources share."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from permafrost.flows.context import RunContext, RunRuntime, SharedBackbone
from permafrost.flows.nodes.corpora import BuildCorpus, corpus_node
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.stages.graphs.linked import LinkedSource
from permafrost.stages.graphs.node_types import (
    ANSWER_ENTITY,
    OTHER,
    QUERY_ENTITY,
    QUERY_NODE,
)
from permafrost.stages.graphs.relevances.cosine import CosineRelevance
from permafrost.stages.graphs.relevances.none import NoRelevance
from permafrost.stages.graphs.sources.question_answering import GraphQuestions
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.real_files import DATA, needs_data
from tests.stages.graphs.small_knowledge import knowledge, write_triples
from tests.stages.graphs.small_linked import (
    ADAPTER,
    TRAIN,
    built,
    graph_of,
    other_links,
    questions,
    require_all_counted,
    table,
    texts,
)


def test_every_choice_is_an_item_with_its_own_graph(tmp_path: Path) -> None:
    corpus = built(questions(tmp_path))
    assert texts(corpus)[:2] == [
        "Where would dogs chase birds? a tree",
        "Where would dogs chase birds? the moon",
    ]
    assert graph_of(corpus, 0) == {
        "": QUERY_NODE,
        "dog": QUERY_ENTITY,
        "bird": QUERY_ENTITY,
        "tree": ANSWER_ENTITY,
        "park": OTHER,
        "animal": OTHER,
    }
    assert graph_of(corpus, 1) == {
        "": QUERY_NODE,
        "dog": QUERY_ENTITY,
        "bird": QUERY_ENTITY,
        "animal": OTHER,
    }
    assert corpus.cases.slice(0, 3).to_pylist() == [
        {"split": "train", "items": [0, 1], "label": 0},
        {"split": "train", "items": [2, 3], "label": 1},
        {"split": "train", "items": [4, 5], "label": 1},
    ]
    assert (corpus.task, corpus.n_relations) == ("multiple_choice", 38)
    assert corpus.examples.column("label").to_pylist()[:4] == [1, 0, 0, 1]
    assert "tree part of park" in corpus.description(0), "merged relations in words"
    templates = questions(tmp_path, knowledge=knowledge(tmp_path, wording="templates"))
    assert "tree is part of park" in built(templates).description(0)
    assert templates.facts() != questions(tmp_path).facts()


def test_query_edges_and_inverses_are_those_of_the_contract(tmp_path: Path) -> None:
    corpus = built(questions(tmp_path))
    edges = corpus.graphs.edges_of(0)
    relation = corpus.graphs.edge_relation[edges]
    assert Counter(relation[relation >= 17].tolist())[17] == 2  # to dog and bird
    assert Counter(relation.tolist())[18] == 1  # to tree
    forward = relation < 19
    assert np.array_equal(np.sort(relation[forward] + 19), np.sort(relation[~forward]))


def test_texts_without_entities_have_a_graph_of_the_query_node_alone(tmp_path: Path) -> None:
    corpus = built(questions(tmp_path))
    assert graph_of(corpus, 4) == graph_of(corpus, 5) == {"": QUERY_NODE}
    assert corpus.description(4) == ""
    says = (
        r"none of the 4 texts \(the first: 'Who\? nobody'\) names one of the 8 labels of the knowledge graph "
        r"\('animal', 'bird', 'dog'\); give both in one language, .* \('en' here\), and with spaces"
    )
    with pytest.raises(InputError, match=says):
        questions(tmp_path, TRAIN[2:]).build()


def test_texts_are_linked_in_the_language_of_the_knowledge_graph(tmp_path: Path) -> None:
    (folder := tmp_path / "de").mkdir()
    path = str(write_triples(folder, [("haus", "IsA", "bau"), ("tasse", "IsA", "ding")]))
    rows = [("a", "Wo sind die Häuser?", ["Tassen", "weg"], 0)]
    german = questions(
        tmp_path, rows, knowledge={"kind": "triples", "path": path, "language": "de"}
    )
    assert graph_of(german.build(), 0) == {"": QUERY_NODE, "haus": 0, "tasse": 1}
    assert german.facts()["labels_language"] == "de"
    assert "labels_language" not in questions(tmp_path).facts(), "keys of before the field"


def test_a_score_that_is_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(
        _: object, __: object, ___: object, nodes: Any, ____: object, _____: object
    ) -> list[np.ndarray]:
        return [np.where(np.arange(len(some)) == 1, np.nan, 0).astype(np.float32) for some in nodes]

    monkeypatch.setattr(NoRelevance, "scores", scores)
    with pytest.raises(InputError, match=r"'none' gives the node '.+' the score nan for the text"):
        questions(tmp_path).build()


def test_one_graph_for_all_choices_of_a_question(tmp_path: Path) -> None:
    corpus = built(questions(tmp_path, graph_per="question"))
    assert corpus.items.column("graph").to_pylist()[:6] == [0, 0, 1, 1, 2, 2]
    assert graph_of(corpus, 2) == {
        "": QUERY_NODE,
        "dog": QUERY_ENTITY,
        "ice cream": ANSWER_ENTITY,
        "animal": ANSWER_ENTITY,
        "park": OTHER,
    } | {"eat": QUERY_ENTITY}


def test_the_query_node_starts_from_item_or_question(tmp_path: Path) -> None:
    corpus = built(questions(tmp_path))
    assert texts(corpus, "query") == texts(corpus)
    alone = built(questions(tmp_path, query_text="question"))
    assert texts(alone, "query")[2:4] == ["What do dogs eat?"] * 2
    assert texts(alone) == texts(corpus)


def test_facts_stand_before_the_question_and_are_not_linked(tmp_path: Path) -> None:
    plain = built(questions(tmp_path))
    gold = built(questions(tmp_path, with_facts={"kind": "gold"}))
    assert texts(gold)[2] == "fact b. What do dogs eat? ice cream"
    facts = table(tmp_path, "facts", [{"fact": "Dogs eat hunger!"}, {"fact": "trees grow"}])
    found = built(questions(tmp_path, with_facts={"kind": "retrieved", "path": facts, "top_k": 1}))
    assert texts(found)[2] == "Dogs eat hunger! What do dogs eat? ice cream"
    assert texts(found)[5] == "Who? somebody"
    assert found.graphs == gold.graphs == plain.graphs


def test_the_inhouse_split_makes_test_of_training_questions(tmp_path: Path) -> None:
    ids = table(tmp_path, "ids", [{"id": "c"}, {"id": "a"}])
    corpus = built(questions(tmp_path, inhouse_train_qids=ids))
    by_split = {s: corpus.case_split(s).column("label").to_pylist() for s in corpus.splits}
    assert by_split == {"train": [0, 1], "dev": [0, 1, 1], "test": [1]}
    (tmp_path / "ids.txt").write_text("c\na\n")
    same = built(questions(tmp_path, inhouse_train_qids=str(tmp_path / "ids.txt")))
    assert same.cases == corpus.cases


@pytest.mark.parametrize("name", ["ids.csv", "ids.tsv"])
def test_ids_without_a_header_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    source = questions(tmp_path, inhouse_train_qids=str(path))
    for rows in ("c\na\n", "c\n"):
        path.write_text(rows)
        says = rf"{name} is called 'c', which is the id of a question of \S+train.parquet .* header; write"
        with pytest.raises(InputError, match=says):
            source.build()
    path.write_text("a\nc\na\n")
    assert built(source).case_split("test").num_rows == 1, "no id is lost"


def test_ids_of_floats_are_those_of_questions_with_floats(tmp_path: Path) -> None:
    rows = [(float(number), *row[1:]) for number, row in enumerate(TRAIN)]
    for numbers in ([2.0, 0.0], [2, 0]):
        ids = table(tmp_path, "ids", [{"id": number} for number in numbers])
        corpus = built(questions(tmp_path, rows, inhouse_train_qids=ids))
        assert corpus.case_split("test").column("label").to_pylist() == [1]


def test_questions_with_equal_choices_are_counted(tmp_path: Path) -> None:
    rows = [*TRAIN, ("d", "What flies?", [" birds", "birds "], 0)]
    for fields in ({}, {"graph_per": "question"}):
        corpus = built(questions(tmp_path, rows, **fields))
        assert corpus.counts()["n_cases_with_equal_choices"] == 2, "one of train, one of dev"
    assert built(questions(tmp_path)).counts()["n_cases_with_equal_choices"] == 0


def test_a_part_of_train_is_chosen_by_seed(tmp_path: Path) -> None:
    chosen = set[tuple[str, ...]]()
    for seed in range(20):
        corpus = built(questions(tmp_path, n_train=2, train_seed=seed))
        of = {s: corpus.case_split(s).column("items").to_pylist() for s in corpus.splits}
        assert [len(some) for some in of.values()] == [2, 3], "dev is whole"
        kept = tuple(texts(corpus)[items[0]] for items in of["train"])
        turned = built(questions(tmp_path, TRAIN[::-1], n_train=2, train_seed=seed))
        assert {
            texts(turned)[i[0]] for i in turned.case_split("train").column("items").to_pylist()
        } == {*kept}
        chosen.add(kept)
    every = [f"{text} {choices[0]}" for _, text, choices, _ in TRAIN]
    assert chosen == {(every[0], every[1]), (every[0], every[2]), (every[1], every[2])}
    whole = built(questions(tmp_path, n_train=3))
    assert whole.cases == built(questions(tmp_path)).cases


def test_more_training_questions_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="n_train is 4, but there are 3 training questions"):
        questions(tmp_path, n_train=4).build()
    ids = table(tmp_path, "ids", [{"id": "a"}])
    with pytest.raises(InputError, match=r"n_train is 2, but there are 1 .* with an id of"):
        questions(tmp_path, n_train=2, inhouse_train_qids=ids).build()
    with pytest.raises(ValidationError, match="n_train is 2, but the splits"):
        questions(tmp_path, n_train=2, files={"test": str(tmp_path / "train.parquet")})


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        (["a", "x"], "has 1 ids of 2 that no question .* such as 'x'"),
        (["a", "b", "c"], "leaves test empty"),
    ],
)
def test_ids_of_other_questions_are_refused(tmp_path: Path, ids: list[str], says: str) -> None:
    path = table(tmp_path, "ids", [{"id": key} for key in ids])
    with pytest.raises(InputError, match=says):
        questions(tmp_path, inhouse_train_qids=path).build()


def test_ids_that_are_not_unique_and_splits_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "ids", [{"id": "a"}])
    with pytest.raises(InputError, match="the id 'a' is that of 2 questions"):
        questions(tmp_path, [TRAIN[0], TRAIN[0], TRAIN[1]], inhouse_train_qids=path).build()
    files = {"test": str(tmp_path / "train.parquet")}
    for fields in ({"files": files, "inhouse_train_qids": path}, {"files": {"x": path}}):
        with pytest.raises(ValidationError):
            questions(tmp_path, **fields)


def test_splits_with_other_numbers_of_choices_are_refused(tmp_path: Path) -> None:
    source = questions(tmp_path)
    rows = [{"id": "d", "question": "q", "choices": ["a", "b", "c"], "label": 0}]
    table(tmp_path, "dev", rows)
    with pytest.raises(InputError, match=r"have 3 choices, those of .* have 2"):
        source.build()


def test_building_twice_gives_the_same_and_saving_keeps_it(tmp_path: Path) -> None:
    source = questions(tmp_path, max_nodes=4)
    corpus = built(source)
    sizes = np.diff(corpus.graphs.node_offsets)
    assert max(sizes) == 4
    n_whole = np.diff(built(questions(tmp_path)).graphs.node_offsets).sum()
    assert corpus.left_out == {"nodes_cut": n_whole - sizes.sum()}
    again = built(source)
    assert again.graphs == corpus.graphs
    assert list(again.labels) == list(corpus.labels)
    corpus.save(tmp_path)
    assert GraphCorpus.load(tmp_path).graphs == corpus.graphs


def test_every_field_of_questions_is_among_their_facts(tmp_path: Path) -> None:
    def make(folder: Path = tmp_path, **fields: Any) -> LinkedSource:
        return questions(folder, **fields)

    make()
    files = {"train": str(tmp_path / "train.parquet")}
    others = {
        **other_links(tmp_path),
        "files": files,
        **dict.fromkeys(("question", "choices", "label", "id"), "other"),
        "inhouse_train_qids": table(tmp_path, "ids", [{"id": "a"}]),
        "n_train": 2,
        "train_seed": 1,
        "graph_per": "question",
        "query_text": "question",
        "with_facts": "gold",
    }
    require_all_counted(make, others, {*GraphQuestions.model_fields}, tmp_path / "moved")


class Told:
    """Notes what progress is told."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, float, str]] = []
        self.done = 0.0

    def start(self, task: str, total: float, unit: str) -> None:
        self.tasks.append((task, total, unit))

    def advance(self, amount: float, note: str = "") -> None:
        self.done += amount

    def finish(self) -> None:
        self.tasks.append(("finished", self.done, ""))


def test_building_tells_how_many_graphs_are_done(tmp_path: Path) -> None:
    told = Told()
    questions(tmp_path, [TRAIN[0]] * 400).build_showing(told)
    linked = ("link entities", 1600, "graphs")
    cut = ("cut subgraphs", 1600, "graphs")
    assert told.tasks == [linked, ("finished", 1500, ""), cut, ("finished", 3000, "")]


def test_a_node_builds_the_corpus_ahead_unless_a_model_scores_it(tmp_path: Path) -> None:
    plain = corpus_node("t", questions(tmp_path))
    told = Told()
    context = RunContext(tmp_path / "home", RunRuntime())
    corpus = BuildCorpus.build_showing(plain, context, told)
    assert corpus.task == "multiple_choice"
    assert told.tasks
    assert BuildCorpus.known_ahead(plain, context)
    config = {"kind": "cosine", "backbone": {"source": "minilm"}}
    scored = corpus_node("t", questions(tmp_path, node_relevance=config))
    assert not BuildCorpus.known_ahead(scored, context)
    assert scored.resources.backbone
    assert not plain.resources.backbone
    assert any("relevances.cosine" in name for name in scored.code)
    assert not any("relevances.cosine" in name for name in plain.code)
    assert any("knowledge.triples" in name for name in plain.code)


@pytest.mark.deep
@pytest.mark.night
@needs_data
def test_openbookqa_and_scifact_as_published() -> None:
    graph = {
        "kind": "triples",
        "path": str(DATA / "conceptnet_cn100k/train.parquet"),
        "relations": "merged",
    }
    files = {split: str(DATA / f"openbookqa/{split}.parquet") for split in ("dev", "test")}
    config = {"kind": "graph_questions", "files": files, "knowledge": graph}
    corpus = ADAPTER.validate_python(config).build()
    assert isinstance(corpus, GraphCorpus)
    assert {s: corpus.case_split(s).num_rows for s in corpus.splits} == {"dev": 500, "test": 500}
    n_nodes = np.diff(corpus.graphs.node_offsets)
    assert (n_nodes == 1).mean() < 0.01
    assert n_nodes.max() <= 200
    path = str(DATA / "scifact")
    config = {
        "kind": "graph_retrieval",
        "path": path,
        "n_dev_queries": 100,
        "knowledge": graph,
    }
    corpus = ADAPTER.validate_python(config).build()
    assert isinstance(corpus, GraphCorpus)
    assert len(corpus.documents) == 5183
    held = corpus.case_split("dev").column("items").to_pylist()
    assert len({corpus.texts[corpus.items.column("text").to_pylist()[q]] for q, _ in held}) == 100
    assert np.diff(corpus.graphs.node_offsets).max() == 200


def test_a_model_that_scores_nodes_has_the_device_of_the_backbone_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []

    def hold(self: SharedBackbone, device: str, progress: object) -> None:
        events.append(("hold", device))

    def scores(*arguments: Any) -> list[np.ndarray]:
        nodes, device = arguments[3], arguments[5]
        events.append(("score", device))
        return [np.zeros(len(some), np.float32) for some in nodes]

    monkeypatch.setattr(SharedBackbone, "hold", hold)
    monkeypatch.setattr(CosineRelevance, "scores", scores)
    monkeypatch.setattr(NoRelevance, "scores", scores)
    runtime = RunRuntime.model_validate({"extract": {"device": "cuda:1"}})
    context = RunContext(tmp_path / "home", runtime)
    config = {"kind": "cosine", "backbone": {"source": "minilm"}}
    for fields in ({"node_relevance": config}, {}):
        node = corpus_node("t", questions(tmp_path, **fields))
        BuildCorpus.build_showing(node, context, SilentProgress())
    assert events == [("hold", "cuda:1"), ("score", "cuda:1"), ("score", "cuda:1")]
