"""Heads trained on pairs without labels, from files with hard negatives and from a generator."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import all_stores
from tests.flows.experiments import write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import WORDS

pytestmark = pytest.mark.deep

SPLITS = ("train", "dev", "test")


def triplets(path: Path, n: int, seed: int) -> str:
    """A query, a text with its words in another order, and none to two texts with other words."""
    rng = random.Random(seed)
    lines = []
    for i in range(n):
        query = rng.sample(WORDS[:30], 6)
        others = [" ".join(rng.sample(WORDS[:30], 5)) for _ in range(i % 3)]
        row = {"q": " ".join(query), "p": " ".join(reversed(query)), "n": others}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return str(path)


def long_texts(path: Path, n: int, seed: int) -> str:
    rng = random.Random(seed)
    path.write_text("\n".join(" ".join(rng.choices(WORDS[:30], k=16)) for _ in range(n)))
    return str(path)


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    files = {s: triplets(folder / f"{s}.jsonl", 20, i) for i, s in enumerate(SPLITS)}
    texts = {s: long_texts(folder / f"{s}.txt", 12, i) for i, s in enumerate(SPLITS)}
    head = {
        "kind": "head",
        "head": {"kind": "scorer", "hidden": 8},
        "layer": "hidden/2",
        "optim": {"lr": 0.01, "batch_size": 8, "max_epochs": 2},
    }
    loss = {"kind": "contrastive", "similarity": "cosine"}
    return {
        "name": "contrastive",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "tasks": {
            "triplets": {
                "kind": "files",
                "files": files,
                "task": {"kind": "unlabelled", "text": "q", "text_pair": "p", "negative": "n"},
            },
            "halves": {
                "kind": "segments",
                "source": {"kind": "files", "files": texts, "task": {"kind": "unlabelled"}},
                "min_words": 8,
            },
        },
        "methods": {
            "batch only": {**head, "loss": loss},
            "hard negatives": {
                **head,
                "loss": {**loss, "hard_negatives": "add"},
                "tasks": ["triplets"],
            },
        },
        "seeds": [0],
        "report": {"title": "Contrastive"},
    }


@pytest.mark.drawn
def test_pairs_of_files_and_of_a_generator_are_trained_and_reused(
    tiny_bert: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(tmp_path, tiny_bert))
    home = tmp_path / "home"
    result = run_serially(path, home)
    assert result.computed == {"corpus": 2, "extract": 2, "fit": 3, "score": 3, "report": 1}
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    found = {(r["method"], r["task"]): r for r in rows}
    assert found.keys() == {
        ("batch only", "triplets"),
        ("batch only", "halves"),
        ("hard negatives", "triplets"),
    }
    assert {r["metric"] for r in rows} == {"mrr"}
    assert all(0 < r["test"] <= 1 for r in rows)
    dag = look(path, home)
    corpus = dag.corpus("triplets")
    n_negatives = sum(map(len, corpus.examples["negatives"].to_pylist()))
    assert n_negatives == 3 * 19
    (store,) = all_stores(home)
    assert (store.locate(corpus.digests).segment >= 0).all(), "negatives are extracted too"
    histories = [
        (dag.artifacts.open(dag.nodes.fits[m, "triplets", 0].spec.ref) / "log.csv").read_text()
        for m in ("batch only", "hard negatives")
    ]
    assert histories[0] != histories[1]
    assert not run_serially(path, home).computed


def test_adding_negatives_to_pairs_that_have_none_is_refused(
    tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(tmp_path, tiny_bert)
    del content["tasks"]["triplets"]["task"]["negative"]
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match="hard_negatives is 'add', but no train example"):
        run_serially(path, tmp_path / "home")
    content["tasks"]["triplets"]["task"] = {"kind": "unlabelled", "text": "q", "negative": "n"}
    with pytest.raises(InputError, match=r"tasks\.triplets.*but text_pair is not given"):
        load_experiment(write(path, content))
