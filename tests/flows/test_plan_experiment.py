"""Plans where something cannot be had: backbones by the sizes that their authors published, tasks without
their data."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants
from transformers import AutoConfig, AutoModel

import permafrost
from permafrost.flows.cli import main
from permafrost.stages.extraction.published import PUBLISHED
from tests.flows.experiments import graded_task, write

pytestmark = pytest.mark.deep

PAPERS = Path(__file__).parents[2] / "experiments" / "papers"
N_PARAMETERS = {
    "google-bert/bert-base-uncased": 109.5e6,
    "princeton-nlp/sup-simcse-bert-base-uncased": 109.5e6,
    "cambridgeltl/SapBERT-from-PubMedBERT-fulltext": 109.5e6,
    "FacebookAI/roberta-base": 124.6e6,
    "FacebookAI/roberta-large": 355.4e6,
    "intfloat/e5-small-v2": 33.4e6,
    "intfloat/e5-base-v2": 109.5e6,
    "intfloat/e5-large-v2": 335.1e6,
    "sentence-transformers/all-mpnet-base-v2": 109.5e6,
    "gpt2-medium": 354.8e6,
    "mistralai/Mistral-7B-v0.1": 7.111e9,
    "mistralai/Mistral-7B-Instruct-v0.3": 7.114e9,
    "intfloat/e5-mistral-7b-instruct": 7.111e9,
    "meta-llama/Llama-2-7b-hf": 6.607e9,
    "meta-llama/Llama-2-7b-chat-hf": 6.607e9,
    "meta-llama/Llama-3.2-3B": 3.213e9,
    "TinyLlama/TinyLlama_v1.1": 1.034e9,
    "HuggingFaceTB/SmolLM2-360M": 361.8e6,
    "google/gemma-2-9b": 9.242e9,
    "Qwen/Qwen2-0.5B": 494.0e6,
    "Qwen/Qwen2-1.5B-Instruct": 1.544e9,
    "Qwen/Qwen3-8B": 7.568e9,
    "Qwen/Qwen3-Embedding-0.6B": 595.8e6,
}
"""As published; less the output matrix (vocabulary x width) where it is not that of the input."""


@pytest.fixture(autouse=True)
def no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Plan an experiment on a backbone: the exit code, and what was printed."""

    def plan(source: str, *flags: str, **tasks: Any) -> tuple[int, str, str]:
        content = {
            "name": "far",
            "backbone": {"source": source, "max_length": 64},
            "capture": "hidden=2,31@tokens",
            "tasks": {"pairs": graded_task(tmp_path, 12), **tasks},
            "methods": {"mean": {"kind": "head", "layer": "hidden/31", "head": {"kind": "mean"}}},
            "seeds": [0],
        }
        file = write(tmp_path / "far.yaml", content)
        call = ["permafrost", "plan", str(file), "--home", str(tmp_path / "home"), *flags]
        monkeypatch.setattr(sys, "argv", call)
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return plan


def test_a_plan_takes_the_published_sizes_of_a_backbone_that_cannot_be_reached(
    planned: Any, tmp_path: Path
) -> None:
    code, out, _ = planned("mistralai/Mistral-7B-v0.1", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["as_published"] == ["mistralai/Mistral-7B-v0.1"]
    (store,) = said["stores"]
    assert store["store_id"] is None
    # Two blocks of width 4,096 in float16, with at most a MiB for the file's own.
    sizes = store["bytes_per_array"]
    assert sizes["hidden/2"] == sizes["hidden/31"]
    assert 0 <= sizes["hidden/2"] - store["n_tokens"] * 4096 * 2 <= 1 << 20
    stages = {row["stage"]: row["n_run"] for row in said["stages"]}
    assert stages["extract"] == stages["fit"] == 1
    assert not (tmp_path / "home").exists()
    assert not list(tmp_path.glob("permafrost-plan-*"))


def test_a_plan_says_what_it_does_not_know(planned: Any) -> None:
    code, out, _ = planned("mistralai/Mistral-7B-v0.1")
    told = " ".join(out.split())
    assert code == 0
    assert (
        "not here, and the hub cannot be reached: mistralai/Mistral-7B-v0.1. Their sizes are"
        in told
    )
    assert re.search(r"extraction into a store: \d+ new of \d+ texts", told)


def test_a_recipe_may_ask_for_an_end_that_the_tokenizer_adds_itself_to_no_text(
    planned: Any,
) -> None:
    code, out, err = planned("intfloat/e5-mistral-7b-instruct", "--set", "recipe=plain:end=added")
    assert code == 0, err
    assert "extraction into a store" in " ".join(out.split())


def test_a_backbone_whose_sizes_are_not_known_is_refused_as_before(planned: Any) -> None:
    code, _, err = planned("org/name")
    assert code == 2
    assert "the backbone 'org/name' is not a folder here" in " ".join(err.split())


ALLOW = ("--missing-data", "allow")
LAYER = ("--set", "methods.mean.layer=hidden/2")


SLOW = {"glot-table6", "glot-table7", "glot-table12", "freeze-gpt2", "gt2vec-commonsenseqa"}
"""Their texts are generated, or their methods many: seconds each, where others take a fraction of one."""


def paper_name(file: Path) -> str:
    return f"{file.parents[1].name}-{file.stem}"


def paper_files() -> list[Any]:
    files = sorted(PAPERS.glob("*/paper/*.yaml"))
    names = [paper_name(file) for file in files]
    assert set(names) >= SLOW
    return [
        pytest.param(file, id=name, marks=[pytest.mark.night] if name in SLOW else [])
        for file, name in zip(files, names, strict=True)
    ]


def absent_task(folder: str) -> dict[str, Any]:
    files = {split: f"{folder}/{split}.csv" for split in ("train", "dev", "test")}
    task = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    return {"kind": "files", "files": files, "task": task}


def test_a_plan_goes_on_without_data_where_that_is_allowed(planned: Any, tmp_path: Path) -> None:
    _, whole, _ = planned("mistralai/Mistral-7B-v0.1", "--json")
    code, out, err = planned(
        "mistralai/Mistral-7B-v0.1",
        "--json",
        *ALLOW,
        gone=absent_task("nowhere"),
        lost=absent_task("elsewhere"),
    )
    assert code == 0, err
    said = json.loads(out)
    assert said["missing"].keys() == {"gone", "lost"}
    assert "there is no file nowhere/train.csv" in said["missing"]["gone"]
    assert json.loads(whole)["missing"] == {}
    # Everything on the three tasks is to be run, and the texts of the one that is here are counted.
    assert {row["stage"]: row["n_run"] for row in said["stages"]} == {
        **dict.fromkeys(("corpus", "extract", "fit", "score"), 3),
        "report": 1,
    }
    assert said["n_tokens"] == json.loads(whole)["n_tokens"] > 0
    assert not (tmp_path / "home").exists()


def test_a_plan_names_tasks_without_data_once_for_each_reason(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DATA_OF_A_USER", raising=False)
    away = {
        "gone": absent_task("${DATA_OF_A_USER}/gone"),
        "lost": absent_task("${DATA_OF_A_USER}/lost"),
    }
    code, out, err = planned("minilm", *ALLOW, "--set", "capture=hidden=2@tokens", *LAYER, **away)
    told = " ".join(out.split())
    assert code == 0, err
    assert "'gone', 'lost': not set: DATA_OF_A_USER" in told
    assert told.count("DATA_OF_A_USER") == 1
    assert "fits, without what is not counted" in told


def test_a_plan_without_data_is_refused_unless_it_is_allowed(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("--set", "capture=hidden=2@tokens", *LAYER)
    code, _, err = planned("minilm", *settings, gone=absent_task("nowhere"))
    assert code == 2
    assert "there is no file nowhere/train.csv" in " ".join(err.split())
    assert "plan --missing-data allow" in err
    monkeypatch.delenv("DATA_OF_A_USER", raising=False)
    code, _, err = planned("minilm", *settings, gone=absent_task("${DATA_OF_A_USER}"))
    assert code == 2
    assert "needs the environment variable DATA_OF_A_USER, which is not set" in err
    assert "plan --missing-data allow" in err


def test_what_else_is_wrong_is_refused_though_data_may_be_missing(planned: Any) -> None:
    settings = ("--set", "capture=hidden=2@tokens", "--set", "methods.mean.layer=hidden/3")
    code, _, err = planned("minilm", *ALLOW, *settings, gone=absent_task("nowhere"))
    assert code == 2
    assert "reads hidden/3" in err


def test_a_task_that_mteb_does_not_have_is_no_missing_data(planned: Any) -> None:
    hub = "evaluations={on: {tasks: {gone: {kind: mteb, name: NoSuchTask}}, "
    hub += "methods: [mean], fitted_on: pairs}}"
    settings = ("--set", "capture=hidden=2@tokens", *LAYER, "--set", hub)
    for allowed in ((), ALLOW):
        code, _, err = planned("minilm", *settings, *allowed)
        assert code == 2
        assert "NoSuchTask" in err
        assert "--missing-data" not in err


def test_python_takes_the_same_word(tmp_path: Path) -> None:
    content = {
        "name": "far",
        "backbone": {"source": "minilm", "max_length": 64},
        "capture": "hidden=2@tokens",
        "tasks": {"gone": absent_task("nowhere")},
        "methods": {"mean": {"kind": "head", "layer": "hidden/2", "head": {"kind": "mean"}}},
    }
    found = permafrost.plan(content, home=tmp_path / "home", missing_data="allow")
    assert found.missing.keys() == {"gone"}
    with pytest.raises(permafrost.InputError, match=r"there is no file nowhere/train\.csv"):
        permafrost.plan(content, home=tmp_path / "home")
    wrong: Any = "forbid"
    with pytest.raises(permafrost.InputError, match="'forbid', expected refuse or allow"):
        permafrost.plan(content, home=tmp_path / "home", missing_data=wrong)


@pytest.mark.parametrize("file", paper_files())
def test_every_file_of_the_papers_sizes_is_planned_without_models_data_or_network(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERMAFROST_DATA", "PERMAFROST_MODELS"):
        monkeypatch.delenv(name, raising=False)
    found = permafrost.plan(file, home=tmp_path / "home", missing_data="allow")
    assert found.as_published
    assert sum(row.n_run for row in found.rows) > 2
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes_give_the_published_number_of_parameters(name: str) -> None:
    fields = dict(PUBLISHED[name])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    n = sum(p.numel() for p in model.parameters())
    assert n == pytest.approx(N_PARAMETERS[name], rel=2e-3)


def test_the_sizes_of_every_backbone_of_the_papers_are_known() -> None:
    named: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            source = value.get("source")
            if isinstance(source, str) and "$" not in source:
                named.add(source)
            value = list(value.values())
        for one in value if isinstance(value, list) else ():
            collect(one)

    for file in PAPERS.glob("*/paper/*.yaml"):
        collect(yaml.safe_load(file.read_text()))
    assert named >= {"google-bert/bert-base-uncased", "Qwen/Qwen3-8B", "gpt2-medium"}
    # A packaged one, and what a probe reads, which has a field of the same name.
    assert named - {"minilm", "text_end"} <= PUBLISHED.keys()
