"""A small home as an earlier version left it: every head, runs, exports, and the vectors they gave then.

`python -m tests.flows.frozen_home FOLDER` makes one with the code at hand. The one in tests/formats was
made by the last version before the graph was rebuilt, and is never written again: it stands for the homes
that users have.
"""

import json
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

from tests.flows.experiments import pairs
from tests.stages.extraction.tiny_models import WORDS, save_model

ARCHIVE = Path(__file__).parents[1] / "formats" / "home_0.1.0.tar.xz"
TEXTS = ["the deep lake freezes slowly", "warm wind over a white river", "ice"]
HEADS: dict[str, Any] = {
    "first": {"kind": "first"},
    "last": {"kind": "last"},
    "mean": {"kind": "mean"},
    "max": {"kind": "max"},
    "scorer": {"kind": "scorer", "hidden": 8},
    "glot": {"kind": "glot", "n_convs": 1, "hidden": 8, "tau": 0.3},
    "glot gin": {"kind": "glot", "conv": "gin", "n_convs": 2, "hidden": 8, "tau": 0.3},
    "adapool": {"kind": "adapool", "heads": 4},
    "mlp": {"kind": "mlp", "hidden": 8},
}
PAIR_HEADS: dict[str, Any] = {
    "cosine mlp": {"kind": "cosine_mlp"},
    "siamese": {"kind": "siamese", "d_code": 16, "hidden": 16},
    "autoencoder siamese": {
        "kind": "autoencoder_siamese",
        "encoders": {"early": 8, "late": 12},
        "hidden": 16,
    },
    "unified": {"kind": "unified", "encoders": {"early": 8, "late": 12}},
    "unified projection": {
        "kind": "unified_projection",
        "encoders": {"early": 8, "late": 12},
        "d_embed": 16,
    },
}


def experiment() -> dict[str, Any]:
    """One method of every kind on made-up pairs and classes; paths count from the folder."""
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2, "patience": None}
    layers = {"max_epochs": 2, "evaluate_every": 1, "batch_size": 16, "lr": 0.003}
    splits = ("train", "dev", "test")
    return {
        "name": "frozen",
        "backbone": {"source": "backbone"},
        "capture": "hidden=2@tokens",
        "tasks": {
            "pairs": {
                "kind": "files",
                "files": {s: f"{s}.parquet" for s in splits},
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            },
            "classes": {
                "kind": "files",
                "files": {s: f"{s}.jsonl" for s in splits},
                "task": {"kind": "classification", "text": "text", "label": "label"},
            },
        },
        "methods": {
            **{
                name: {
                    "kind": "head",
                    "head": head,
                    "layer": "hidden/2",
                    "optim": optim,
                    "tasks": ["pairs" if name == "scorer" else "classes"],
                }
                for name, head in HEADS.items()
            },
            **{
                name: {"kind": "layers", "head": head, "latents": {"at": "mean"}, **layers}
                for name, head in PAIR_HEADS.items()
            },
            "whitened": {"kind": "embed", "method": "mean", "whitening": {"n_components": 4}},
            "linear": {"kind": "linear", "method": "mean", "c": [1.0]},
            "words": {"kind": "bag_of_words", "c": [1.0]},
        },
        "seeds": [0],
        "report": {"title": "Frozen", "x_axis": {"kind": "tasks"}},
        "runtime": {"workers": 1, "device": "cpu", "extract": {"device": "cpu"}},
    }


def main(folder: Path) -> None:
    """Make a home, its exports and its vectors, and pack them."""
    folder.mkdir(parents=True)
    save_model("bert", folder / "backbone")
    for seed, split in enumerate(("train", "dev", "test")):
        pairs(folder / f"{split}.parquet", 24, seed)
        rng = random.Random(seed)
        rows = [{"text": " ".join(rng.choices(WORDS[:30], k=6)), "label": i % 2} for i in range(16)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment(), sort_keys=False))

    def permafrost(*arguments: str) -> None:
        subprocess.run(
            [str(Path(sys.executable).with_name("permafrost")), *arguments],
            cwd=folder,
            check=True,
            text=True,
        )

    permafrost("run", "experiment.yaml", "--home", "home")
    (folder / "vectors").mkdir()
    for key in trained(folder / "home"):
        name = key.partition("/")[2]
        permafrost(
            *("embed", "texts.txt", "--head", key, "--home", "home", "--device", "cpu"),
            *("-o", f"vectors/{name}.parquet"),
        )
    by_kind = {kind: key for key, kind in trained(folder / "home").items()}
    permafrost("export", by_kind["mean"], "-o", "plain", "--form", "plain", "--home", "home")
    permafrost("export", by_kind["glot"], "-o", "module", "--form", "module", "--home", "home")
    # What made it is of this machine, and the sizes of pictures are not the point.
    with tarfile.open(folder.with_suffix(".tar.xz"), "w:xz") as archive:
        archive.add(folder, arcname=".")


def trained(home: Path) -> dict[str, str]:
    """Trained heads that have a vector for a text: `fit/<key>` to the kind of head."""
    found: dict[str, str] = {}
    for path in sorted(home.glob("artifacts/fit/*/artifact.json")):
        config = json.loads(path.read_text())["spec"]["config"]
        kind = config["head"]["kind"]
        if config.get("kind") != "layers" or kind.startswith("unified"):
            found[f"fit/{path.parent.name}"] = kind
    return found


def unpack(folder: Path) -> Path:
    """The frozen home and what lies beside it, under `folder`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    shutil.rmtree(target, ignore_errors=True)
    main(target)
