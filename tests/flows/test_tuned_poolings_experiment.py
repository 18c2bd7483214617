"""An experiment of poolings that are tuned by a contrastive loss, from pairs to the table of the report."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.stages.finetune.tuned_head_files import load_tuned_head
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.errors import InputError
from tests.flows.experiments import rows_of, run_in, write
from tests.flows.test_contrastive_experiment import SPLITS, triplets
from tests.stages.extraction.tiny_models import save_model

LORA = {"kind": "lora", "r": 2, "targets": "without_keys"}
OPTIM = {"batch_size": 8, "max_epochs": 2, "warmup_steps": 2}


def experiment(folder: Path) -> dict[str, Any]:
    files = {s: triplets(folder / f"{s}.jsonl", 16, i) for i, s in enumerate(SPLITS)}

    def method(pooling: str, train: Any = LORA, **fields: Any) -> dict[str, Any]:
        return {
            "kind": "contrastive",
            "pooling": pooling,
            "train": train,
            "optim": dict(OPTIM),
            **fields,
        }

    return {
        "name": "tuned-poolings",
        "backbone": {"source": str(folder / "llama"), "max_length": 40},
        "tasks": {
            "triplets": {
                "kind": "files",
                "files": files,
                "task": {"kind": "unlabelled", "text": "q", "text_pair": "p", "negative": "n"},
            }
        },
        "methods": {
            "VA untuned": {
                "kind": "contrastive",
                "pooling": "va",
                "layers": "1-2",
                "train": "probe",
            },
            "Finetune-VA": method("va", layers="1-2"),
            "Finetune-MP": method("mean"),
            "attention only": method("va", {**LORA, "targets": "attention_and_norms"}),
            "shuffled": method("va", layers="1-2", labels="shuffled"),
        },
        "seeds": [0],
        "report": {"title": "Tuned poolings"},
        "runtime": {"extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("poolings")
    save_model("llama", found / "llama")
    return found


@pytest.mark.deep
def test_a_tuned_pooling_is_trained_scored_and_reported(folder: Path, tmp_path: Path) -> None:
    content = experiment(folder)
    content["methods"] = {name: content["methods"][name] for name in ("VA untuned", "Finetune-VA")}
    content["methods"]["Finetune-VA"]["optim"] |= {"max_epochs": 1, "warmup_steps": 1}
    _, home, result = run_in(tmp_path, content)
    page = result.report.read_text(encoding="utf-8")
    assert "In 1 of the 2 rows of the table the transformer itself was trained" in page
    assert "Of the 2 rows of the table 1 was trained on a train split, and 1 was not" in page
    rows = {row["method"]: row for row in rows_of(result)}
    assert all(0 < row["test"] <= 1 and row["metric"] == "mrr" for row in rows.values())
    assert rows["VA untuned"]["n_parameters"] == 0
    found = {m.summary["method"]: m for m in ArtifactStore(home).all("finetune")}
    assert "share_with_gradient" not in found["VA untuned"].summary
    # See test_tuned_pooling: one block and the values of the next, of three blocks.
    assert found["Finetune-VA"].summary["share_with_gradient"] == round(928 / 2496, 4)
    assert rows["Finetune-VA"]["n_parameters"] == 2496
    artifact = ArtifactStore(home).folder(found["Finetune-VA"].ref)
    assert load_tuned_head(artifact).n_with_gradient == 928
    assert {p.name for p in (artifact / "backbone").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


@pytest.mark.deep
def test_every_row_is_in_the_report_and_nothing_runs_again(folder: Path, tmp_path: Path) -> None:
    path, home, result = run_in(tmp_path, experiment(folder))
    assert result.computed == {"corpus": 1, "extract": 1, "finetune": 5, "score": 5, "report": 1}
    rows = {row["method"]: row for row in rows_of(result)}
    assert rows.keys() == set(experiment(folder)["methods"])
    assert all(0 < row["test"] <= 1 and row["metric"] == "mrr" for row in rows.values())
    assert rows["shuffled"]["role"] == "control"
    sizes = {name: row["n_parameters"] for name, row in rows.items()}
    assert sizes["VA untuned"] == 0
    assert 0 < sizes["attention only"] < sizes["Finetune-VA"] == sizes["Finetune-MP"]
    shares = {
        m.summary["method"]: m.summary["share_with_gradient"]
        for m in ArtifactStore(home).all("finetune")
        if m.summary["method"] != "VA untuned"
    }
    assert shares["Finetune-MP"] == 1 > shares["Finetune-VA"] == shares["shuffled"]
    assert not run_serially(path, home).computed


def test_a_pooling_is_a_head_without_parameters_with_its_backbone(folder: Path) -> None:
    as_head = {
        "kind": "finetuned",
        "head": {"kind": "mean"},
        "layer": "values/1-2",
        "train": LORA,
        "optim": {**OPTIM, "lr": 2e-4, "backbone_lr": 2e-4, "max_steps": 2000},
        "loss": {
            "kind": "contrastive",
            "similarity": "cosine",
            "temperature": 0.02,
            "hard_negatives": "add",
        },
        "n_negatives": 1,
    }
    content = experiment(folder)
    content["methods"]["as head"] = as_head
    fits = build_graph(load_experiment(content)).fits
    assert fits["as head", "triplets", 0].id == fits["Finetune-VA", "triplets", 0].id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "methods.Finetune-VA.layers=9",
            "values=9 was asked for, but this llama backbone has values",
        ),
        (
            "methods.Finetune-VA.train={kind: last_blocks, n: 2, below: cached}",
            "the head reads values/1, but with below: cached the first block that runs is 2",
        ),
        ("methods.Finetune-VA.pooling=max", "'va' or 'mean'"),
        ("methods.Finetune-VA.optim.backbone_lr=1e-3", "a pooling has no head .* give it as lr"),
        (
            "methods.Finetune-VA.optim.warmup_steps=4",
            "warmup_steps is 4, but training has at most 4 steps",
        ),
        (
            "tasks.triplets.task.negative=null",
            "hard_negatives is 'add', but no train example of the corpus has one",
        ),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(
    folder: Path, tmp_path: Path, change: str, message: str
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(folder))
    with pytest.raises(InputError, match=message):
        run_serially(path, tmp_path / "home", [change])
    assert not (tmp_path / "home" / "artifacts" / "finetune").exists()
