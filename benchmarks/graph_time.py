"""What GLOT's token graph costs by length, on the token states of a home.

    OMP_NUM_THREADS=1 python -m benchmarks.graph_time HOME [--layer hidden/6] [--store ID] [--tau T] [--json]
        [--backbone MODEL]

Source: GLOT, table 10 (time to build the graph against the number of tokens). Beside it stands a whole
training step of GLOT, which builds the graph too, and the share of pairs that are connected, on which both
depend. Texts of a wanted length are stored token states, one text after the other, cut to it. With
`--backbone`, the one that the store is of, also the graph against a whole inference, as the table has it: the
stored token ids through the backbone and GLOT, one text at a time. `efficiency --only graph` measures the
graph on synthetic states.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch

from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.stages.extraction.backbone import BackboneConfig, find_backbone, load_backbone
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded, PlainRecipe, resolve_recipe
from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph.token_graph import build_graph, edges
from permafrost.stages.heads.pooling import Pooling
from permafrost.storage.errors import InputError, NotFoundError, PermafrostError
from permafrost.storage.features.layout import TOKEN_IDS
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.ragged import Ragged
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


def first_rows(
    store: FeatureStore,
    array: str,
    n_tokens: int,
    held: str,
    precision: Literal["float32", "stored"],
) -> np.ndarray:
    """The first rows of an array, `[n_tokens, ...]`, of those segments that hold another one too.

    Raises:
        InputError: it has fewer.
    """
    rows: list[np.ndarray] = []
    missing = n_tokens
    for segment in store.segments():
        if missing <= 0 or held not in store.committed(segment):
            continue
        digests = store.segment(segment).table.column("digest").to_pylist()
        reader = open_reader(store, array, digests, budget_bytes=1 << 30, precision=precision)
        for _, texts in reader.in_order(64):
            rows.append(texts.data[: max(missing, 0)])
            missing -= len(rows[-1])
    if missing > 0:
        raise InputError(
            f"{n_tokens} token states of {held} were asked for and {store.root} has {n_tokens - missing}; "
            "lower --texts or --lengths"
        )
    return np.concatenate(rows)


def first_states(store: FeatureStore, array: str, n_tokens: int) -> torch.Tensor:
    """The first token states of a store, `[n_tokens, width]` float32.

    Raises:
        InputError: it has fewer.
    """
    return torch.from_numpy(first_rows(store, array, n_tokens, array, "float32"))


class Inference:
    """The backbone of a store over its token ids."""

    def __init__(self, store: FeatureStore, array: str, source: str, n_tokens: int) -> None:
        """Raises: InputError: another backbone, a layer before the last, or fewer tokens in the store."""
        files = find_backbone(BackboneConfig(source=source))
        of = store.record.identity
        if files.weights_digest != of.weights_digest:
            raise InputError(
                f"{source} has the weights {files.weights_digest[:12]} and {store.root} is of "
                f"{of.weights_digest[:12]}; name the backbone that the store is of"
            )
        self.backbone, self.array = load_backbone(files, "float32", "cpu"), array
        self.recipe = resolve_recipe(PlainRecipe(), self.backbone.sizes)
        last = {f"hidden/{self.backbone.sizes.n_layers}", "hidden/final"}
        if array not in last:
            raise InputError(
                f"--layer is {array}, after which the pass of this backbone would end; a whole one needs "
                f"{' or '.join(sorted(last))}"
            )
        self.ids = first_rows(store, TOKEN_IDS.name, n_tokens, array, "stored").astype(np.int32)

    def require_length(self, n_tokens: int) -> None:
        """Raises: InputError: the backbone does not read so many tokens."""
        if n_tokens > (limit := self.backbone.sizes.max_positions):
            raise InputError(
                f"texts of {n_tokens} tokens were asked for and the backbone reads {limit}; lower --lengths"
            )

    def states(self, text: int, n_tokens: int) -> torch.Tensor:
        """Of one text, by a pass over it."""
        offsets = np.array([0, n_tokens])
        encoded = Encoded(
            token_ids=Ragged(self.ids[text * n_tokens : (text + 1) * n_tokens], offsets),
            span=Ragged(np.ones(n_tokens, bool), offsets),
            span_start=np.zeros(1, np.int64),
            span_end=np.full(1, n_tokens),
            truncated=np.zeros(1, bool),
        )
        return forward(self.backbone, encoded, [self.array], self.recipe)[self.array].float()


def step(head: Pooling, tokens: torch.Tensor, offsets: torch.Tensor) -> None:
    """Forward and backward."""
    head.zero_grad()
    head(tokens, offsets).square().mean().backward()


def graphs(
    args: argparse.Namespace, states: torch.Tensor, inference: Inference | None
) -> Iterator[Finding]:
    """One line per length; with the backbone two."""
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
        if inference is not None:
            yield alone(args, tokens, length, head, inference)


@torch.no_grad()
def alone(
    args: argparse.Namespace,
    tokens: torch.Tensor,
    length: int,
    head: Pooling,
    inference: Inference,
) -> Finding:
    """One text at a time: its graph, and the backbone and the head on it."""
    one = torch.tensor([0, length])

    def graph() -> None:
        for text in tokens.split(length):
            build_graph(text, one, args.tau)

    def whole() -> None:
        for text in range(args.texts):
            head(inference.states(text, length), one)

    calls = {"graph": graph, "whole": whole}
    for call in calls.values():
        call()
    times = interleaved(calls, args.rounds, clock=CLOCKS[args.clock])
    graph_ms, whole_ms = (1e3 * median(times[name]) / args.texts for name in calls)
    shares = [a / b for a, b in zip(times["graph"], times["whole"], strict=True)]
    return Finding(
        f"{length} tokens: graph / whole inference",
        ratio(times, "graph", "whole"),
        "",
        f"{graph_ms:.3f} of {whole_ms:.2f} ms a text, one at a time; rounds {min(shares):.3g} to "
        f"{max(shares):.3g}; the paper: at most 0.013",
    )


def main(given: list[str] | None = None) -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("home", type=Path)
    parser.add_argument("--layer", default="hidden/6")
    parser.add_argument("--store", help="the beginning of a store's id")
    parser.add_argument("--backbone", help="the one that the store is of: whole inference as well")
    parser.add_argument("--tau", type=float, default=GlotHead().tau)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--texts", type=int, default=8, help="texts of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(given)
    try:
        store = chosen_store(args.home, args.layer, args.store)
        n_tokens = args.texts * max(args.lengths)
        states, inference = first_states(store, args.layer, n_tokens), None
        if args.backbone is not None:
            inference = Inference(store, args.layer, args.backbone, n_tokens)
            inference.require_length(max(args.lengths))
    except PermafrostError as error:
        parser.error(str(error))
    title = f"graph_time, {args.layer} of {store.store_id[:12]}, {args.clock} clock"
    show(title, list(graphs(args, states, inference)), as_json=args.json)


if __name__ == "__main__":
    main()
