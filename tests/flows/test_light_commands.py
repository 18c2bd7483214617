"""What commands import: a plan, a typo and the help neither torch nor transformers (issue: commands answer
at once). Their seconds are in benchmarks/commands.py."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import pairs
from tests.stages.graphs import small_tables

HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "scipy",
    "sklearn",
    "huggingface_hub",
}
PROGRAM = """
import json, os, sys
from permafrost.flows.cli.app import main
sys.argv = ["permafrost", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as ended:
    code = ended.code or 0
else:
    code = 0
print(json.dumps([code, sorted(sys.modules)]))
"""


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[str]], tuple[int, set[str]]]:
    """The exit code of a command, and which of the heavy libraries it imported."""
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))

    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    def call(words: Sequence[str]) -> tuple[int, set[str]]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(list(words))],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        code, modules = json.loads(done.stdout.splitlines()[-1])
        return code, HEAVY & {name.partition(".")[0] for name in modules}

    return call


def test_help_imports_no_store(called: Callable[[Sequence[str]], tuple[int, set[str]]]) -> None:
    assert called(["--help"]) == (0, set())


def test_the_version_is_printed_by_itself(
    called: Callable[[Sequence[str]], tuple[int, set[str]]],
) -> None:
    assert called(["--version"]) == (0, set())
    done = subprocess.run(
        [sys.executable, "-c", "from permafrost.flows.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == version("permafrost") + "\n"


@pytest.mark.deep
def test_a_typo_is_told_and_a_plan_made_without_what_computes(
    called: Callable[[Sequence[str]], tuple[int, set[str]]],
    tiny_bert: Path,
    tmp_path: Path,
) -> None:
    fields = tiny_experiment(tiny_bert)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(fields))
    (tmp_path / "typo.yaml").write_text(yaml.safe_dump(fields | {"captrue": "hidden=1"}))
    assert called(["plan", "typo.yaml"]) == (2, set())
    code, first = called(["plan", "tiny.yaml"])
    assert code == 0
    assert {"torch", "transformers"} <= first, "it reads the model's files, and counts tokens"
    assert called(["plan", "tiny.yaml"]) == (0, set())


@pytest.mark.deep
def test_a_run_with_nothing_to_do_loads_no_backbone(
    called: Callable[[Sequence[str]], tuple[int, set[str]]], tiny_bert: Path, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_experiment(tiny_bert)))
    code, first = called(["run", "tiny.yaml", "--engine", "serial"])
    assert code == 0
    assert {"torch", "transformers"} <= first
    assert called(["run", "tiny.yaml"]) == (0, set())


@pytest.mark.deep
@pytest.mark.night
def test_so_is_a_plan_of_what_trains_a_backbone_or_reads_all_layers(
    called: Callable[[Sequence[str]], tuple[int, set[str]]], tiny_bert: Path, tmp_path: Path
) -> None:
    graded = {s: str(pairs(tmp_path / f"{s}.parquet", 6, 0)) for s in ("train", "dev", "test")}
    single = {
        "kind": "layers",
        "head": {"kind": "unified", "encoders": {"early": 4, "late": 4}},
    }
    fields = {
        "name": "trained",
        "backbone": {"source": str(tiny_bert), "max_length": 32},
        "tasks": {
            "graded": {
                "kind": "files",
                "files": graded,
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            },
            "rooms": {**small_tables.write(tmp_path / "tables"), "task": "classification"},
        },
        "methods": {
            "adapted": {
                "kind": "finetuned",
                "head": {"kind": "mean"},
                "layer": "hidden/2",
                "train": "lora",
                "tasks": ["graded"],
            },
            "above": {
                "kind": "finetuned",
                "head": {"kind": "mean"},
                "layer": "hidden/3",
                "train": {"kind": "last_blocks", "n": 1, "below": "cached"},
                "tasks": ["graded"],
            },
            "one": {**single, "latents": {"layers": "1"}},
            "two": {**single, "latents": {"layers": "2"}},
            "both": {"kind": "layers_on_heads", "heads": ["one", "two"]},
            "GT2VEC": {"kind": "graph_text", "model": {"kind": "gt2vec"}},
            "GCN": {"kind": "graph_text", "model": {"kind": "qa_gnn", "encoder": {"kind": "gcn"}}},
        },
        "seeds": [0],
    }
    (tmp_path / "trained.yaml").write_text(yaml.safe_dump(fields))
    assert called(["plan", "trained.yaml"])[0] == 0
    assert called(["plan", "trained.yaml"]) == (0, set())
