"""An epoch of GT2VEC with the graph token first, and with the graph token last from cached states.

    OMP_NUM_THREADS=1 python -m benchmarks.graph_token [--backbone PATH] [--texts N] [--words N] [--json]

Both train the same graph encoder, adapter and scorer on the same pairs of a text and a graph, through a
frozen decoder. With the token first every text passes through the backbone in every step; with the token
last its keys come from stored states, which one extraction makes. Peak memory is that of a fresh process
beyond one that has loaded model and data (on a GPU, what its allocator held at most); the states are read
from disk.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from benchmarks.backbone_runs import run_ours, synthetic
from benchmarks.measuring import Finding, interleaved, measured, ratio, show, spread
from permafrost.stages.extraction.backbone import BackboneConfig, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractConfig, ExtractTarget, resolve_target
from permafrost.stages.finetune.backbone_pass import embedding_width, read_states
from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import BackboneTexts, FinetuneData
from permafrost.stages.finetune.entering import entering_arrays
from permafrost.stages.finetune.graph_batches import (
    ItemFeatures,
    RandomRows,
    StoredRows,
    texts_of,
)
from permafrost.stages.finetune.token_place import state_array
from permafrost.stages.finetune.train import build_module
from permafrost.stages.finetune.trainee import GraphTextTrainee
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.graphs.assembling import Case, Item, assemble
from permafrost.stages.graphs.collecting import GraphCollector
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.readers import open_reader

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PLACES = ("first", "last")
N_NODES = 8
"""Of each graph; the graph encoder is a small part of a step."""


def save_decoder(folder: Path, width: int, blocks: int) -> Path:
    """A random decoder with grouped queries."""
    from tests.stages.extraction.tiny_models import save_model

    return save_model(
        "llama",
        folder,
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 32,
        num_key_value_heads=max(width // 128, 1),
        head_dim=32,
        intermediate_size=width * 7 // 2,
        max_position_embeddings=1024,
    )


def target_of(args: argparse.Namespace, source: str) -> ExtractTarget:
    """What enters each block at every token, and the last state of a text."""
    backbone = BackboneConfig(source=source, max_length=args.max_length)
    sizes = resolve_target(
        ExtractConfig(backbone=backbone, capture=parse_capture("hidden=0@last"))
    ).sizes
    last = "final" if sizes.has_final_norm else sizes.n_layers
    wanted = f"hidden=0-{sizes.n_layers - 1}@tokens,hidden={last}@last"
    return resolve_target(ExtractConfig(backbone=backbone, capture=parse_capture(wanted)))


def corpus_of(args: argparse.Namespace) -> GraphCorpus:
    """Pairs of a text and a graph; the first `--texts` are trained on."""
    rng = np.random.default_rng(0)
    texts = synthetic(args.texts * args.words * 2, args.words)[: args.texts]
    graphs, cases = GraphCollector(1), list[Case]()
    for n, text in enumerate([*texts, "snow", "ice"]):
        labels = [f"node {i}" for i in rng.choice(100, N_NODES, replace=False)]
        edges = [(i, 0, i + 1) for i in range(N_NODES - 1)]
        split = "train" if n < len(texts) else "dev" if n == len(texts) else "test"
        cases.append(Case(split, (Item(text, graphs.add(labels, edges, queries=[0])),), n % 2))
    return assemble("classification", cases, graphs, ("next",), label_names=("no", "yes"))


def trainer_of(args: argparse.Namespace, place: str, folder: Path) -> Trainer[Any, Any]:
    """A new model of its own, in front of its first step; what it reads lies in a folder."""
    target = target_of(args, str(args.backbone or folder / "decoder"))
    corpus = corpus_of(args)
    (store,) = all_stores(folder / "home")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = load_backbone(target.files, "float32", device)
    encoded = encode(target.recipe, target.tokenizer, list(corpus.texts), target.max_length)

    def reader(array: str) -> Any:
        # The states need not fit in memory, as a large corpus' would not.
        return open_reader(store, array, corpus.digests, budget_bytes=args.budget, tokens="all")

    entering = None
    if place == "last":
        entering = tuple(reader(a) for a in entering_arrays(target.sizes))
    texts = StoredRows(reader(state_array("last", target.sizes)))
    features = ItemFeatures(RandomRows(64, 0), texts, entering=entering)
    data = FinetuneData(corpus, features, BackboneTexts(backbone, target.recipe, encoded))
    config = FinetuneConfig.model_validate(
        {
            "model": {"kind": "gt2vec", "graph_token": place, "description": "none"},
            "loss": {"kind": "binary"},
            "optim": {"batch_size": args.batch},
            "seed": 0,
        }
    )
    trainee = GraphTextTrainee(config, data, build_module(config, data), torch.device(device))
    return Trainer(trainee, trainee.plan)


def epoch(trainer: Trainer[Any, Any]) -> None:
    """Every step of one."""
    for _ in trainer.steps(1):
        pass
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def tokens(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """Time, memory and bytes."""
    source = str(args.backbone or save_decoder(folder / "decoder", args.width, args.blocks))
    target, corpus = target_of(args, source), corpus_of(args)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone = load_backbone(target.files, "float32", device)
    clock = CLOCKS[args.clock]
    begin = clock()
    store = run_ours(target, folder / "home", list(corpus.texts), backbone, args.tokens, device)
    extraction = clock() - begin
    trainers = {place: trainer_of(args, place, folder) for place in PLACES}
    for trainer in trainers.values():
        epoch(trainer)
    calls = {place: partial(epoch, trainer) for place, trainer in trainers.items()}
    times = interleaved(calls, args.rounds, clock=clock)
    first, last = (median(times[place]) for place in PLACES)
    n_tokens, n_bytes = _stored(store, target)
    length, dtype = n_tokens / len(corpus.texts), store.spec("hidden/0").dtype
    yield Finding(
        "an epoch: token first / last from the cache",
        ratio(times, "first", "last"),
        "",
        f"{first:.2f} / {last:.2f} s ({args.clock}) for {args.texts} texts of {length:.0f} tokens; "
        f"{spread(times, 'first', 'last')}",
    )
    yield Finding(
        "bytes of the cache per token",
        n_bytes / n_tokens,
        "",
        f"{n_bytes / 2**20:,.1f} MiB in all: {target.sizes.n_layers} blocks x {target.sizes.d_model} numbers",
    )
    yield Finding(
        "token last from the cache, away from its whole pass",
        _difference(cast(GraphTextTrainee, trainers["last"].trainee), target),
        "",
        f"largest difference of a batch's vectors / largest number, from states in {dtype}",
    )
    nothing, *peaks = (_child(args, place, folder) for place in ("nothing", *PLACES))
    whole, cached = (peak - nothing for peak in peaks)
    yield Finding(
        "peak memory: token first / last from the cache",
        whole / cached,
        "",
        f"{whole / 2**20:,.0f} MiB / {cached / 2**20:,.0f} MiB, batches of {args.batch}",
    )
    saved = first - last
    yield Finding(
        "epochs that pay for the extraction",
        extraction / saved if saved > 0 else float("inf"),
        "",
        f"{extraction:.2f} s once, {saved:.2f} s saved per epoch",
    )


def _difference(trainee: GraphTextTrainee, target: ExtractTarget) -> float:
    """Between the cached and the whole pass of one batch, each graph with the same token."""
    data = trainee.data
    assert data.live is not None
    assert data.features.entering is not None
    batch = trainee.batches(1)[0]
    texts = texts_of(data.corpus, batch.items)
    draw = torch.Generator().manual_seed(0)
    shape = (len(texts), embedding_width(data.live.backbone))
    # As large as the embeddings of words.
    scale = cast(Any, data.live.backbone.model.get_input_embeddings()).weight.std().cpu()
    tokens = (torch.randn(shape, generator=draw) * scale).to(trainee.device)
    with torch.no_grad():
        read = trainee.reader.batch(batch.items, trainee.device).states
        assert read is not None
        cached = read(tokens, "last")
        whole = read_states(
            *(data.live.backbone, data.live.texts.take(texts), target.recipe, "last"),
            *(tokens, "last"),
        )
    return float((cached - whole).abs().max() / whole.abs().max())


def _stored(store: FeatureStore, target: ExtractTarget) -> tuple[int, int]:
    """Tokens, and the bytes of what enters the blocks."""
    arrays = entering_arrays(target.sizes)
    n_tokens = sum(
        int(store.segment(s).table.column("n_tokens").to_numpy().sum()) for s in store.segments()
    )
    return n_tokens, sum(store.spec(a).row_bytes for a in arrays) * n_tokens


def _child(args: argparse.Namespace, place: str, folder: Path) -> float:
    """Peak bytes of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.graph_token", "--child", place, "--folder", folder]
    for name in ("backbone", "texts", "words", "batch", "budget", "max_length"):
        if (value := getattr(args, name)) is not None:
            command += [f"--{name.replace('_', '-')}", value]
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _run_child(args: argparse.Namespace) -> None:
    trainer = trainer_of(args, "last" if args.child == "last" else "first", args.folder)
    if args.child != "nothing":
        epoch(trainer)
    # Not ru_maxrss: Linux hands the parent's peak on to a child, also through exec.
    peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(json.dumps(torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak))


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backbone", help="a decoder; a random one if not given")
    parser.add_argument("--width", type=int, default=256, help="of the random decoder")
    parser.add_argument("--blocks", type=int, default=8, help="of the random decoder")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--words", type=int, default=12, help="median length of a text")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048, help="of a batch of the extraction")
    parser.add_argument(
        "--budget", type=int, default=1 << 20, help="bytes of an array held in memory"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--folder", type=Path, help="where to write")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(given)
    if args.child:
        _run_child(args)
        return
    args.only = ("tokens",)
    show("Graph token", measured({"tokens": tokens}, args), as_json=args.json)


if __name__ == "__main__":
    main()
