"""The experiment files that are of no paper: each is built and planned, on small models and made-up data."""

import shutil
from pathlib import Path

import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.short import short
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.mteb_evaluation.small_tasks import write_rows, write_task

FOLDER = Path(__file__).parents[2] / "experiments"
CELLS = {
    "ablation": 10 * 3 * 3,
    "classification": 8 * 2 * 3 + 4 * 2,
    "demo": 5 * 3 * 3 + 3 + 2 * 3,
    "glot_ablation": 14 * 2 * 3 + 2,
    "inside": 1,
    "mteb_local": 10 * 11,
    "probes": 3 * 7,
    "training_free": 43,
    "training_free_encoder": 16,
    "whitening": 7,
}
"""Rows by tasks by seeds."""
PROBED = {"inside": 10, "probes": 18, "training_free": 6, "training_free_encoder": 6}
"""Curves by tasks."""
SMALL = {
    "probes": ["x-pairs.splits.test=test"],
    "training_free": ["tasks.halves of reviews.n_texts=4", "backbone.max_length=500"],
    "training_free_encoder": ["tasks.halves of reviews.n_texts=4"],
}
"""What is as large as the data that it is made for."""
LOCAL = {
    "banking77": "classification",
    "emotion": "classification",
    "glue_mrpc": "pair_classification",
    "scifact": "retrieval",
    "cranfield": "retrieval",
    "summeval": "summarization",
    "sts12": "sts",
    "sts13": "sts",
}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models of the same depth, and the folders that the files read."""
    folder = tmp_path_factory.mktemp("experiments")
    save_model("llama", folder / "mixed6m-gqa", num_hidden_layers=6, max_position_embeddings=512)
    save_model("bert", folder / "minilm", num_hidden_layers=6, max_position_embeddings=512)
    for name, kind in LOCAL.items():
        shutil.copytree(write_task(folder / "made" / name, kind), folder / name)
    for n, split in enumerate(("train", "dev", "test")):
        pairs = [
            {
                "sentence1": f"{WORDS[i]} {WORDS[i + 3]} {n}",
                "sentence2": f"{WORDS[i + n]} is the {WORDS[i]} of {n}",
                "score": float(i % 6),
            }
            for i in range(20)
        ]
        write_rows(folder / "stsb" / f"{split}.parquet", pairs)
        classed = [{"text": f"{WORDS[i]} {n} {WORDS[i + 2]}", "label": i % 3} for i in range(20)]
        for name in ("banking77", "emotion"):
            write_rows(folder / name / f"{split}.parquet", classed)
        judged = [{"sentence": f"{WORDS[i]} is {n}", "label": i % 2} for i in range(20)]
        write_rows(folder / "glue_cola" / f"{split}.parquet", judged)
        reviews = [
            {"text": f"{WORDS[i]} {n} . " + f"It was {WORDS[i]} . " * 40, "label": i % 2}
            for i in range(20)
        ]
        write_rows(folder / "imdb" / f"{split}.parquet", reviews)
    for unread in ("glue_cola/test", "imdb/dev", "banking77/dev"):
        (folder / f"{unread}.parquet").unlink()
    titles = [{"title": f"the {WORDS[i]}", "label_name": "ab"[i % 2]} for i in range(12)]
    write_rows(folder / "twentynewsgroups_titles" / "all.parquet", titles)
    candidates = [
        {
            "qid": i // 3,
            "question": WORDS[i // 3],
            "sentence": WORDS[3 + i],
            "label": int(i % 3 == 0),
        }
        for i in range(12)
    ]
    write_rows(folder / "wikiqa" / "test.parquet", candidates)
    return folder


def test_every_file_is_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*CELLS}


@pytest.mark.parametrize("name", short(CELLS, "demo", "inside", "mteb_local"))
def test_a_file_is_built_and_planned(
    name: str, stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins))
    monkeypatch.setenv("PERMAFROST_MODELS", str(stand_ins))
    path, small = FOLDER / f"{name}.yaml", list(SMALL.get(name, ()))
    if load_experiment(path).backbone.source == "minilm":
        small.append(f"backbone.source={stand_ins / 'minilm'}")
    nodes = build_graph(load_experiment(path, small))
    assert len(nodes.results | nodes.evaluations) == CELLS[name]
    assert len(nodes.probes) == PROBED.get(name, 0)
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", nodes.experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()
