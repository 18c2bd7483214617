"""What GLOT's token graph costs by length, on the token states of a home.

    OMP_NUM_THREADS=1 python -m benchmarks.graph_time HOME [--layer hidden/6] [--store ID] [--tau T] [--json]

Source: GLOT, table 10 (time to build the graph against the number of tokens). Beside it stands a whole
training step of GLOT, which builds the graph too, and the share of pairs that are connected, on which both
depend. Texts of a wanted length are stored token states, one text after the other, cut to it. `efficiency
--only graph` measures the same on synthetic states, against a pass of the backbone.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph.token_graph import build_graph, edges
from permafrost.stages.heads.pooling import Pooling
from permafrost.storage.errors import InputError, NotFoundError, PermafrostError
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.readers import open_reader

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def chosen_store(home: Path, array: str, name: str | None) -> FeatureStore:
    """The feature store of a home that holds an array.

    Args:
        home: a folder.
        array: for example `hidden/6`.
        name: the beginning of the store's id; None for the only one.

    Raises:
        NotFoundError: there is none, or more than one.
    """
    found = [
        store
        for store in all_stores(home)
        if store.store_id.startswith(name or "")
        and any(array in store.committed(s) for s in store.segments())
    ]
    if len(found) != 1:
        ids = ", ".join(store.store_id[:12] for store in found) or "none"
        raise NotFoundError(
            f"{len(found)} feature stores of {home} hold {array} ({ids}); name one by --store, or another "
            "--layer"
        )
    return found[0]


def first_states(store: FeatureStore, array: str, n_tokens: int) -> torch.Tensor:
    """The first token states of a store, `[n_tokens, width]` float32.

    Raises:
        InputError: it has fewer.
    """
    rows: list[np.ndarray] = []
    missing = n_tokens
    for segment in store.segments():
        if missing <= 0 or array not in store.committed(segment):
            continue
        digests = store.segment(segment).table.column("digest").to_pylist()
        for _, texts in open_reader(store, array, digests, budget_bytes=1 << 30).in_order(64):
            rows.append(texts.data[: max(missing, 0)])
            missing -= len(rows[-1])
    if missing > 0:
        raise InputError(
            f"{n_tokens} token states of {array} were asked for and {store.root} has {n_tokens - missing}; "
            "lower --texts or --lengths"
        )
    return torch.from_numpy(np.concatenate(rows).astype(np.float32))


def step(head: Pooling, tokens: torch.Tensor, offsets: torch.Tensor) -> None:
    """Forward and backward."""
    head.zero_grad()
    head(tokens, offsets).square().mean().backward()


def graphs(args: argparse.Namespace, states: torch.Tensor) -> Iterator[Finding]:
    """One line per length."""
    for length in sorted(set(args.lengths)):
        tokens = states[: args.texts * length]
        offsets = torch.arange(0, len(tokens) + 1, length)
        head = GlotHead(tau=args.tau).build(tokens.shape[1], torch.Generator().manual_seed(0))
        calls: dict[str, Callable[[], object]] = {
            "graph": partial(build_graph, tokens, offsets, args.tau),
            "step": partial(step, head, tokens, offsets),
        }
        for call in calls.values():
            call()
        times = interleaved(calls, args.rounds, clock=CLOCKS[args.clock])
        graph_ms, step_ms = (1e3 * median(times[name]) / args.texts for name in ("graph", "step"))
        density = edges(tokens, offsets, args.tau).shape[1] / (args.texts * length * length)
        yield Finding(
            f"{length} tokens: graph / whole GLOT step",
            ratio(times, "graph", "step"),
            "",
            f"{graph_ms:.2f} of {step_ms:.2f} ms per text; {density:.1%} of the pairs connected; "
            f"{spread(times, 'graph', 'step')}",
        )


def main(given: list[str] | None = None) -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("home", type=Path)
    parser.add_argument("--layer", default="hidden/6")
    parser.add_argument("--store", help="the beginning of a store's id")
    parser.add_argument("--tau", type=float, default=GlotHead().tau)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--texts", type=int, default=8, help="texts of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given)
    try:
        store = chosen_store(args.home, args.layer, args.store)
        states = first_states(store, args.layer, args.texts * max(args.lengths))
    except PermafrostError as error:
        parser.error(str(error))
    title = f"graph_time, {args.layer} of {store.store_id[:12]}, {args.clock} clock"
    show(title, list(graphs(args, states)), as_json=args.json)


if __name__ == "__main__":
    main()
