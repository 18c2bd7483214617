"""A search by the backbone's own vectors: a row of a table for which nothing is trained."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from permafrost.stages.finetune.cases import require_cases
from permafrost.stages.finetune.config import FinetuneScoreConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.score import score_finetuned
from permafrost.stages.finetune.train import finetune
from permafrost.stages.finetune.trained import Finetuned, load_finetuned
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.conftest import Pair
from tests.stages.finetune.tiny_graphs import config_of, data_of, retrieval

Pairs = Callable[[str], Pair]


def without_split(corpus: GraphCorpus, split: str, cases_too: bool) -> GraphCorpus:
    """No document is relevant to a query of the split; or it has no case at all."""
    judged, cases = corpus.judgements, corpus.cases
    kept = judged.filter(pc.not_equal(judged.column("split"), split))
    is_of = pc.equal(cases.column("split"), split)
    if cases_too:
        return replace(corpus, judgements=kept, cases=cases.filter(pc.invert(is_of)))
    at = cases.column_names.index("label")
    labels = pc.if_else(is_of, pa.scalar(0, pa.int64()), cases.column("label"))
    return replace(corpus, judgements=kept, cases=cases.set_column(at, cases.field(at), labels))


@pytest.mark.parametrize("cases_too", [False, True])
def test_where_nothing_is_trained_train_may_be_empty(pair: Pairs, cases_too: bool) -> None:
    data = replace(data_of(retrieval(), pair("bert").backbone), live=None)
    zero_shot = config_of(data.corpus, {"kind": "text_only"})
    mapped = config_of(
        data.corpus, {"kind": "text_only"}, loss={"kind": "retrieval", "z_map": "linear"}
    )
    bare = replace(data, corpus=without_split(data.corpus, "train", cases_too))

    def scores(given: FinetuneData) -> dict[str, object]:
        return dict(score_finetuned(FinetuneScoreConfig(), loaded, given).metrics)

    result = finetune(zero_shot, bare, SilentProgress())
    loaded = Finetuned(zero_shot, result.facts, 0, result.best.dev_metric, result.state, ())
    given, without = scores(data), scores(bare)
    of_train = {"overlap", "n_clean_test", "clean_test", "dev_in_train"}
    assert {name for name in given if without[name] != given[name]} == of_train
    assert {without[name] for name in of_train} == {None}
    assert given.keys() == without.keys()
    with pytest.raises(InputError, match="no train cases" if cases_too else "a query of train"):
        require_cases(mapped, bare.corpus)
    for split in ("dev", "test"):
        with pytest.raises(InputError, match=f"no judgements of {split}"):
            require_cases(zero_shot, without_split(data.corpus, split, cases_too))
    judged = data.corpus.judgements
    at = judged.column_names.index("grade")
    grade = judged.schema.field(at)
    none = judged.set_column(at, grade, pa.array([0] * judged.num_rows, grade.type))
    with pytest.raises(InputError, match="give a relevant document in each of dev and test"):
        require_cases(zero_shot, replace(data.corpus, judgements=none))


@pytest.mark.parametrize(
    "model",
    [{"kind": "text_only"}, {"kind": "gt2vec", "description": "none", "graph_token": "none"}],
)
def test_without_graphs_a_search_is_the_ranking_by_stored_vectors(
    pair: Pairs, model: dict[str, object], tmp_path: Path
) -> None:
    data = replace(data_of(retrieval(), pair("bert").backbone), live=None)
    config = config_of(data.corpus, model)
    assert config.trains_nothing
    result = finetune(config, data, SilentProgress())
    assert (result.best.epoch, result.n_parameters, result.history) == (0, 0, ())
    result.save(tmp_path)
    again = load_finetuned(tmp_path)
    scored = score_finetuned(FinetuneScoreConfig(), again, data)
    assert scored.metrics["dev"] == result.best.dev_metric
    assert "optim.lr" not in again.choice
    corpus, texts = data.corpus, data.features.texts
    assert texts is not None
    rows = texts.take(corpus.items.column("text").to_numpy()).astype(np.float64)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for split in ("dev", "test"):
        judged = corpus.judgements.filter(pc.equal(corpus.judgements.column("split"), split))
        gains: list[float] = []
        for row in judged.to_pylist():
            cosines = units[list(corpus.documents)] @ units[row["query"]]
            rank = int((cosines > units[row["document"]] @ units[row["query"]] + 1e-12).sum())
            gains.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
        assert scored.metrics[split] == pytest.approx(float(np.mean(gains)))
    assert 0 < scored.metrics["test"] < 1
