"""What a corpus needs, so that a model can be trained on it, chosen and scored."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from permafrost.stages.finetune.cases import (
    alike,
    items_by_split,
    relevant_grades,
    require_cases,
    texts_of_items,
)
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_batches import ItemFeatures, RandomRows
from permafrost.stages.finetune.train import finetune
from permafrost.stages.graphs.assembling import Item, corpus_of_items
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.finetune.tiny_graphs import ENCODER, config_of, pairs, questions, retrieval


def require(corpus: GraphCorpus, description: str = "trained", **changes: object) -> None:
    model: dict[str, object] = {"kind": "gt2vec", "description": description}
    require_cases(config_of(corpus, model, **changes), corpus)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_search_without_a_relevant_document_in_a_split_is_refused(split: str) -> None:
    corpus = retrieval()
    require(corpus)

    def irrelevant(table: pa.Table, column: str) -> pa.Table:
        own = pc.equal(table.column("split"), split)
        at = table.column_names.index(column)
        none = pc.if_else(own, pa.scalar(0, pa.int64()), table.column(column))
        return table.set_column(at, table.field(at), none)

    cases, judged = irrelevant(corpus.cases, "label"), irrelevant(corpus.judgements, "grade")
    with pytest.raises(InputError, match=f"no document is relevant to a query of {split}: grades"):
        require(replace(corpus, judgements=judged, cases=cases))


def test_judgements_of_train_are_not_needed_where_its_cases_are() -> None:
    """As in a folder of BEIR, whose corpus has judgements of what is searched alone."""
    corpus = retrieval()
    judged = corpus.judgements
    searched = judged.filter(pc.not_equal(judged.column("split"), "train"))
    assert 0 < searched.num_rows < judged.num_rows
    require(replace(corpus, judgements=searched))


def test_texts_of_a_search_are_those_of_its_queries() -> None:
    corpus = retrieval()
    judged = corpus.judgements
    searched = judged.filter(pc.not_equal(judged.column("split"), "train"))
    for one in (corpus, replace(corpus, judgements=searched)):
        texts, found = texts_of_items(one), items_by_split(one)
        assert [len(found[split]) for split in ("train", "dev", "test")] == [10, 4, 4]
        words = [one.texts[int(text)] for case in found["test"] for text in texts[case]]
        assert all(text.startswith("never ") for text in words)
        queries = list(relevant_grades(one, "test"))
        assert words == [one.texts[one.items.column("text")[q].as_py()] for q in queries]


def test_texts_of_a_question_are_those_of_its_choices() -> None:
    corpus = questions()
    texts, found = texts_of_items(corpus), items_by_split(corpus)
    assert [len(case) for case in found["dev"]] == [2, 3] * 3
    assert len({int(t) for cases in found.values() for case in cases for t in texts[case]}) == 60


def test_items_are_alike_if_their_texts_and_the_contents_of_their_graphs_are() -> None:
    graphs = GraphCollector(1)
    one, again, other = (
        graphs.add(labels, [(0, 0, 1)]) for labels in (["a", "b"], ["a", "b"], ["b", "a"])
    )
    items = [Item("x", one), Item("x", again), Item("x", other), Item("x", -1), Item("y", one)]
    corpus, _ = corpus_of_items(items, graphs, ["r"])
    found = alike(corpus)
    assert found[0] == found[1]
    assert len({*found.tolist()}) == 4
    bare, _ = corpus_of_items([Item("x", -1), Item("y", -1)], GraphCollector(1), ["r"])
    assert len({*alike(bare).tolist()}) == 2


def test_what_cannot_be_trained_is_refused() -> None:
    require(pairs())
    with pytest.raises(
        InputError, match=r"'choice' is made for multiple_choice, .* of kind classification"
    ):
        require(pairs(), loss={"kind": "choice"})
    with pytest.raises(InputError, match=r"batches of at least 2 cases, .* optim.batch_size is 1"):
        require(retrieval(), optim={"batch_size": 1})
    with pytest.raises(InputError, match=r"no test cases \(its splits: train, dev\)"):
        require(pairs({"train": 4, "dev": 2}))


@pytest.mark.parametrize("names", [("no", "yes", "unknown"), ("no",)])
def test_other_than_two_classes_are_refused(names: tuple[str, ...]) -> None:
    """The sigmoid of a score knows two: a third was a target of 2, and scoring failed after the fit."""
    corpus = replace(pairs(), label_names=names)
    found = f"made for 2 classes, and the corpus has {len(names)} .'no'"
    with pytest.raises(InputError, match=found):
        require(corpus)


SCORED = {**ENCODER, "relevance": "score"}


def test_relevance_that_nothing_scored_is_refused() -> None:
    """Every node had the same score, 0, so that the code of relevance was a constant."""
    corpus = pairs()
    model = {"kind": "qa_gnn", "encoder": SCORED}
    config = config_of(corpus, model)
    with pytest.raises(InputError, match="but the corpus has none: its nodes are not scored"):
        require_cases(config, corpus)
    scores = np.linspace(0, 1, len(corpus.graphs.node_label), dtype=np.float32)
    zeros = replace(corpus, graphs=replace(corpus.graphs, are_scored=True))
    with pytest.raises(InputError, match="its nodes are not scored"):
        require_cases(config, zeros)
    graphs = replace(corpus.graphs, node_relevance=scores, are_scored=True)
    scored = replace(corpus, graphs=graphs)
    require_cases(config, scored)
    _fit(config, scored)
    with pytest.raises(ValidationError, match="relevance is to the text, of which gnn_only sees"):
        config_of(corpus, {**model, "kind": "gnn_only"})


def test_shuffled_graphs_that_are_all_the_same_are_refused() -> None:
    corpus = pairs()
    one = np.zeros(corpus.items.num_rows, np.int64)
    at = corpus.items.schema.get_field_index("graph")
    same = corpus.items.set_column(at, corpus.items.schema.field(at), pa.array(one))
    require(corpus, "none", graphs="shuffled")
    with pytest.raises(InputError, match="24 of the 24 texts with a graph have the same one"):
        require(replace(corpus, items=same), "none", graphs="shuffled")


def _fit(config: FinetuneConfig, corpus: GraphCorpus) -> None:
    features = ItemFeatures(RandomRows(6, 3), RandomRows(8, 4))
    finetune(config, FinetuneData(corpus, features, None), SilentProgress())
