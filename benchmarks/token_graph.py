"""A training step of a GLOT head: torch-geometric over ours, at equal outputs and gradients.

    OMP_NUM_THREADS=2 python -m benchmarks.token_graph [--tokens 30 256 512] [--groups 4 16] [--json]

A step is forward, backward and Adam on 32 texts of the given mean length, each within a quarter of it.
Five versions with the same weights are measured against ours; all of them, and ours, build their graphs in
every step. GLOT's released code (`build_pyg_graphs` and `GLOT.forward` in its main.py, revision 7452e5d)
makes the cosines of a text by `cosine_similarity` on broadcast copies `[n, n, d]` and its edges by
`dense_to_sparse`, text by text, then convolves all graphs as one torch-geometric batch.

| version | cosines of a text | convolutions and readout |
|---|---|---|
| `literal` | as released | text by text |
| `released` | as released | one batch |
| `sentence` | one product of matrices | text by text |
| `batched` | one product of matrices | one batch |
| `by_name` | as ours | one batch, by `conv: {kind: pyg, name: GATConv}`; our readout |

The tokens lie around `--groups` directions, so that one pair in as many is connected: 4 is the density of
MiniLM's states at tau 0.6 (0.06 to 0.27 measured), 16 the lower end of it, 2 that of its last layer at
0.4; other backbones connect more. Broadcast cosines take seconds on long texts and run in fewer
rounds. Peak memory is what three steps in a fresh process need beyond their data (Linux only). `--clock
cpu` is the processor's time, the fairer clock for one thread on a machine that does other work too.
"""

import argparse
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.measuring import Finding, interleaved, ratio, show, spread
from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.glot_pooling import GlotPooling
from permafrost.stages.heads.graph.pyg_conv import PygConv, PygConvolution
from permafrost.stages.heads.graph.token_graph import edges
from permafrost.stages.heads.pooling import Classifier
from tests.stages.heads.pyg_reference import convolve, edge_index, gat_conv, pool_sentence

with warnings.catch_warnings():
    # torch-geometric 2.8.1 calls the deprecated torch.jit.script when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Batch, Data
    from torch_geometric.utils import dense_to_sparse, softmax

TEXTS, WIDTH, TAU = 32, 384, 0.6
VERSIONS = ("literal", "released", "sentence", "batched", "by_name")
TARGETS = {"literal": ">= 5", "sentence": ">= 5"}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PARTS = ("steps", "peaks")
LEAST_SECONDS = 0.05
"""Steps follow one another, as in training, so often that ours take at least so long."""
BROADCAST, FEWER = ("literal", "released"), 128
"""Versions that run in a third of the rounds from this mean length on."""


def connect_as_released(tokens: Tensor, tau: float) -> Tensor:
    """Pairs (from, to) of one text, the diagonal included as the cosine decides."""
    cosine = functional.cosine_similarity(tokens.unsqueeze(1), tokens.unsqueeze(0), dim=-1)
    return dense_to_sparse((cosine > tau).float())[0]


class Case:
    """A head, the same head in torch-geometric, and a batch of texts of one mean length."""

    def __init__(self, n_tokens: int, hidden: int, groups: int, device: str) -> None:
        self.device = device
        draw = torch.Generator().manual_seed(0)
        low, high = n_tokens * 3 // 4, n_tokens * 5 // 4
        lengths = torch.randint(low, high + 1, (TEXTS,), generator=draw)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
        kinds = torch.randint(0, groups, (int(lengths.sum()),), generator=draw)
        tokens = 1.5 * torch.randn(groups, WIDTH, generator=draw)[kinds]
        tokens += torch.randn(tokens.shape, generator=draw)
        self.tokens = tokens.to(device)
        self.labels = torch.randint(0, 2, (TEXTS,), generator=draw).to(device)
        head = GlotHead(hidden=hidden, tau=TAU).build(WIDTH, draw).to(device)
        assert isinstance(head, GlotPooling)
        self.head = head
        self.classifier = Classifier(head.d_out, 2, draw).to(device)
        self.layers = [gat_conv(conv).to(device) for conv in head.convs]  # pyright: ignore[reportArgumentType] # a ModuleList
        conv = PygConv(name="GATConv", args={"edge_dim": 1})
        named = GlotHead(hidden=hidden, tau=TAU, conv=conv).build(WIDTH, draw).to(device)
        assert isinstance(named, GlotPooling)
        named.readout = head.readout
        for layer, theirs in zip(named.convs, self.layers, strict=True):
            assert isinstance(layer, PygConvolution)
            layer.layer.layer = theirs
        self.named = named
        rest = [*head.readout.parameters(), *self.classifier.parameters()]
        self.parameters = {
            "ours": [*head.convs.parameters(), *rest],
            "pyg": [*(p for layer in self.layers for p in layer.parameters()), *rest],
        }
        self.adam = {
            name: torch.optim.Adam(parameters, lr=0.0, fused=True)
            for name, parameters in self.parameters.items()
        }

    @property
    def density(self) -> float:
        """Connected share of the pairs of tokens of a text."""
        n_edges = edges(self.tokens, self.offsets, TAU).shape[1]
        return n_edges / float((self.offsets.diff() ** 2).sum())

    def texts(self) -> tuple[Tensor, ...]:
        """The tokens of each text."""
        return self.tokens.split(self.offsets.diff().tolist())

    def ours(self) -> Tensor:
        """Vectors of the batch."""
        return self.head(self.tokens, self.offsets)

    def literal(self) -> Tensor:
        """The same, one text after the other, connected as released."""
        return self._text_by_text(connect_as_released)

    def sentence(self) -> Tensor:
        """The same, one text after the other, cosines as a product."""
        return self._text_by_text(edge_index)

    def _text_by_text(self, connect: Callable[[Tensor, float], Tensor]) -> Tensor:
        found = [pool_sentence(self.head, self.layers, s, TAU, connect)[0] for s in self.texts()]
        return torch.stack(found)

    def released(self) -> Tensor:
        """The same, one batch, connected as released."""
        graphs = [Data(x=s, edge_index=connect_as_released(s, TAU)) for s in self.texts()]
        return self._of_one_graph(Batch.from_data_list(graphs).edge_index)

    def batched(self) -> Tensor:
        """The same, one batch, cosines as a product."""
        starts = self.offsets[:-1].tolist()
        found = [edge_index(s, TAU) + at for s, at in zip(self.texts(), starts, strict=True)]
        return self._of_one_graph(torch.cat(found, dim=1))

    def by_name(self) -> Tensor:
        """The same by our head with a layer of torch-geometric."""
        return self.named(self.tokens, self.offsets)

    def _of_one_graph(self, graph: Tensor) -> Tensor:
        hidden = [self.tokens]
        for layer in self.layers:
            hidden.append(torch.relu(convolve(layer, hidden[-1], graph)))
        fused = torch.cat(hidden, dim=1)
        scores = self.head.readout.second(torch.tanh(self.head.readout.first(fused)))
        owner = torch.arange(TEXTS, device=fused.device).repeat_interleave(self.offsets.diff())
        weights = softmax(scores, owner, num_nodes=TEXTS)
        out = fused.new_zeros(TEXTS, fused.shape[1])
        return out.index_add(0, owner, weights * fused)

    def step(self, name: str) -> tuple[Tensor, list[Tensor]]:
        """One training step (at learning rate 0, so that all versions keep equal weights)."""
        kind = "ours" if name == "ours" else "pyg"
        self.adam[kind].zero_grad()
        vectors = getattr(self, name)()
        functional.cross_entropy(self.classifier(vectors), self.labels).backward()
        self.adam[kind].step()
        if self.tokens.is_cuda:
            torch.cuda.synchronize(self.tokens.device)
        grads = [p.grad.flatten() for p in self.parameters[kind] if p.grad is not None]
        return vectors.detach(), grads


def difference(case: Case, version: str) -> float:
    """Largest difference of vectors and gradients, relative to the largest of each."""
    ours, our_grads = case.step("ours")
    theirs, their_grads = case.step(version)
    worst = 0.0
    # Gradients of the two libraries' parameters come in one order per layer; compare them sorted.
    for one, other in ((ours, theirs), (_sorted(our_grads), _sorted(their_grads))):
        worst = max(worst, float((one - other).abs().max() / other.abs().max()))
    assert worst < 1e-3, f"outputs or gradients differ by {worst:.1e}"
    return worst


def _sorted(grads: list[Tensor]) -> Tensor:
    return torch.cat(grads).sort().values


def steps(args: argparse.Namespace, n_tokens: int, groups: int) -> Iterator[Finding]:
    """Time of a step."""
    case = Case(n_tokens, args.hidden, groups, args.device)
    where = f"{n_tokens} tokens, density {case.density:.2f}"
    for version in args.versions:
        differ = difference(case, version)
        rounds = args.rounds
        if version in BROADCAST and n_tokens >= FEWER:
            rounds = max(1, rounds // 3)
        begin = time.perf_counter()
        case.step("ours")
        n_steps = math.ceil(LEAST_SECONDS / (time.perf_counter() - begin))
        calls = {name: partial(_repeat, case, name, n_steps) for name in (version, "ours")}
        times = interleaved(calls, rounds, clock=CLOCKS[args.clock])
        ours, theirs = (1e3 * median(times[name]) / n_steps for name in ("ours", version))
        yield Finding(
            f"{where}: {version} / ours",
            ratio(times, version, "ours"),
            TARGETS.get(version, ""),
            f"{theirs:.1f} and {ours:.1f} ms; {spread(times, version, 'ours')}; differ by {differ:.0e}",
        )


def _repeat(case: Case, name: str, n_steps: int) -> None:
    for _ in range(n_steps):
        case.step(name)


def peaks(args: argparse.Namespace, n_tokens: int, groups: int) -> Iterator[Finding]:
    """Peak memory of three steps."""
    names = ("ours", *args.versions)
    mib = {name: _child_peak(args, name, n_tokens, groups) / 2**20 for name in names}
    for version in args.versions:
        yield Finding(
            f"{n_tokens} tokens, {groups} groups: peak memory, {version} / ours",
            mib[version] / mib["ours"],
            "",
            f"{mib[version]:,.0f} and {mib['ours']:,.0f} MiB",
        )


def _child_peak(args: argparse.Namespace, name: str, n_tokens: int, groups: int) -> int:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.token_graph", "--peak-of", name]
    command += ["--tokens", str(n_tokens), "--groups", str(groups)]
    command += ["--hidden", str(args.hidden), "--device", args.device]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(name: str, n_tokens: int, hidden: int, groups: int, device: str) -> None:
    Case(4, hidden, groups, device).step(name)  # libraries loaded, buffers of the runtime made
    case = Case(n_tokens, hidden, groups, device)
    if case.tokens.is_cuda:
        torch.cuda.reset_peak_memory_stats(case.tokens.device)
        before = torch.cuda.memory_allocated(case.tokens.device)
        for _ in range(3):
            case.step(name)
        print(torch.cuda.max_memory_allocated(case.tokens.device) - before)
        return
    # Importing needs more than a small step does: forget that peak, then start from what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    for _ in range(3):
        case.step(name)
    print(_status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+", default=[30, 256, 512])
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--versions", nargs="+", choices=VERSIONS, default=[*VERSIONS])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=[*CLOCKS], default="wall")
    parser.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--peak-of", choices=["ours", *VERSIONS])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.peak_of:
        _print_peak(args.peak_of, args.tokens[0], args.hidden, args.groups[0], args.device)
        return
    # What a process that has read features has done: from then on freed memory stays with it.
    torch.empty(31 << 18)
    parts = [part for name, part in (("steps", steps), ("peaks", peaks)) if name in args.only]
    findings = [
        finding
        for part in parts
        for n_tokens in args.tokens
        for groups in args.groups
        for finding in part(args, n_tokens, groups)
    ]
    title = (
        f"token_graph: {TEXTS} texts, width {WIDTH}, hidden {args.hidden}, 2 convolutions, {args.device}, "
        f"{args.clock} clock, {args.rounds} rounds, torch {torch.__version__}"
    )
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
