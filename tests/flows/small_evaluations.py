"""An experiment with evaluations of methods and of a head on small tasks of mteb."""

from pathlib import Path
from typing import Any

from tests.flows.experiments import pairs
from tests.stages.mteb_evaluation.small_tasks import write_tasks

EVALUATED = ("mean", "asked", "VA auto", "head")


def write_data(folder: Path) -> Path:
    """Its tasks and its graded pairs."""
    found = write_tasks(folder)
    for seed, split in enumerate(("train", "dev", "test")):
        pairs(found / f"{split}.parquet", 24, seed)
    return found


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    def local(kind: str) -> dict[str, str]:
        return {"kind": "local", "type": kind, "path": str(folder / kind)}

    files = {split: str(folder / f"{split}.parquet") for split in ("train", "dev", "test")}
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    head = {
        "kind": "head",
        "head": {"kind": "scorer", "hidden": 8},
        "layer": "hidden/2",
        "optim": {"lr": 0.01, "batch_size": 8, "max_epochs": 1},
    }
    return {
        "name": "evaluations",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "recipes": {"question": {"kind": "template", "template": "is {text} ?"}},
        "tasks": {"pairs": {"kind": "files", "files": files, "task": columns}},
        "methods": {
            "mean": {"kind": "embed", "layers": "2"},
            "asked": {"kind": "embed", "layers": "2", "prompts": {"query": "question"}},
            "VA auto": {"kind": "embed", "method": "va", "layers": "auto"},
            "head": head,
        },
        "evaluations": {
            "mteb": {
                "tasks": {k: local(k) for k in ("sts", "classification", "retrieval")},
                "methods": list(EVALUATED),
                "fitted_on": "pairs",
            }
        },
        "seeds": [0, 1],
        "report": {"title": "Evaluations", "averages": "mteb"},
        "runtime": {"workers": 2, "extract": {"device": "cpu"}},
    }
