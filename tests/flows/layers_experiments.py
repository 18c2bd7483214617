"""A small experiment of FREEZE!'s heads, to be run or changed."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.flows.experiments import pairs
from tests.stages.extraction.tiny_models import WORDS, save_model

SIZES = {"early": 8, "late": 12}


def written(folder: Path) -> dict[str, str]:
    """Pairs, texts to pretrain on, of which one is a text of test, and a backbone."""
    rng = random.Random(3)
    generic = sorted({" ".join(rng.choices(WORDS[:30], k=7)) for _ in range(60)})
    found = {
        split: str(pairs(folder / f"{split}.parquet", 40, seed))
        for seed, split in enumerate(("train", "dev", "test"))
    }
    generic[-1] = pq.read_table(found["test"]).column("a")[0].as_py()
    (folder / "generic.txt").write_text("\n".join(generic))
    return {
        **found,
        "generic": str(folder / "generic.txt"),
        "gpt2": str(save_model("gpt2", folder / "gpt2")),
    }


def experiment(files: dict[str, str]) -> dict[str, Any]:
    """Autoencoders, and heads with and without them."""
    training = {"max_epochs": 4, "evaluate_every": 2, "batch_size": 16, "lr": 0.003}
    wide = {"kind": "autoencoder_siamese", "encoders": SIZES, "hidden": 16}
    return {
        "name": "freeze",
        "backbone": {"source": files["gpt2"]},
        "tasks": {
            "pairs": {
                "kind": "files",
                "files": {s: files[s] for s in ("train", "dev", "test")},
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            },
            "generic": {
                "kind": "files",
                "files": {"all": files["generic"]},
                "task": {"kind": "unlabelled"},
            },
        },
        "pretrainings": {
            "encoders": {
                "task": "generic",
                "autoencoder": {"encoders": SIZES, "max_epochs": 3, "batch_size": 16, "seed": 0},
                "measured_on": "pairs",
            }
        },
        "methods": {
            "cosine MLP": {"kind": "layers", "head": {"kind": "cosine_mlp"}, **training},
            "from scratch": {"kind": "layers", "head": wide, **training},
            "pretrained": {
                "kind": "layers",
                "head": wide,
                "encoders": "encoders",
                "test_by_epoch": "kept",
                **training,
            },
        },
        "seeds": [0, 1],
        "report": {
            "title": "Heads on every layer",
            "residuals": [{"method": "pretrained"}],
        },
    }
