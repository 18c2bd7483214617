"""One training step of a GLOT head: ours against torch-geometric, at equal outputs and gradients.

    OMP_NUM_THREADS=1 python -m benchmarks.token_graph [--device cuda] [--tokens 30 256 512]

Compared: `sentence` is the literal version, a graph and a forward pass per sentence; `batched`
builds a graph per sentence and convolves them as one torch-geometric batch, as the released code
does. A step is forward, backward and Adam on 32 sentences. The tokens lie around `--groups`
directions, so that one pair in as many is connected: 4 is the density of MiniLM's states at tau 0.6
(0.06 to 0.27 measured), 2 that of its last layer at 0.4; other backbones connect more. Steps of the three
alternate and the fastest counts, because another process can only slow one down. Peak memory is what
three steps in a fresh process need beyond their data (Linux only).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.utils import softmax

from stages.heads import Classifier, GlotHead, build_head
from stages.heads.glot import GlotPooling
from stages.heads.token_graph import edges
from tests.stages.heads.pyg_reference import convolve, edge_index, gat_conv, pool_sentence

SENTENCES, WIDTH, TAU = 32, 384, 0.6


class Case:
    """A head, the same head in torch-geometric, and a batch of sentences of one mean length."""

    def __init__(self, n_tokens: int, hidden: int, groups: int, device: str) -> None:
        draw = torch.Generator().manual_seed(0)
        low, high = n_tokens * 3 // 4, n_tokens * 5 // 4
        lengths = torch.randint(low, high + 1, (SENTENCES,), generator=draw)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(device)
        kinds = torch.randint(0, groups, (int(lengths.sum()),), generator=draw)
        tokens = 1.5 * torch.randn(groups, WIDTH, generator=draw)[kinds]
        tokens += torch.randn(tokens.shape, generator=draw)
        self.tokens = tokens.to(device)
        self.labels = torch.randint(0, 2, (SENTENCES,), generator=draw).to(device)
        head = build_head(GlotHead(hidden=hidden, tau=TAU), WIDTH, draw).to(device)
        assert isinstance(head, GlotPooling)
        self.head = head
        self.classifier = Classifier(head.d_out, 2, draw).to(device)
        self.layers = [gat_conv(conv).to(device) for conv in head.convs]  # pyright: ignore[reportArgumentType] # a ModuleList
        rest = [*head.readout.parameters(), *self.classifier.parameters()]
        self.parameters = {
            "ours": [*head.convs.parameters(), *rest],
            "pyg": [*(p for layer in self.layers for p in layer.parameters()), *rest],
        }
        self.adam = {
            name: torch.optim.Adam(parameters, lr=0.0, fused=True)
            for name, parameters in self.parameters.items()
        }

    def ours(self) -> Tensor:
        """Vectors of the batch."""
        return self.head(self.tokens, self.offsets)

    def sentence(self) -> Tensor:
        """The same, one sentence after the other."""
        parts = self.tokens.split(self.offsets.diff().tolist())
        return torch.stack([pool_sentence(self.head, self.layers, s, TAU)[0] for s in parts])

    def batched(self) -> Tensor:
        """The same, graphs one after the other and then one large graph."""
        starts = self.offsets[:-1].tolist()
        parts = self.tokens.split(self.offsets.diff().tolist())
        graph = torch.cat(
            [edge_index(s, TAU) + start for s, start in zip(parts, starts, strict=True)], dim=1
        )
        hidden = [self.tokens]
        for layer in self.layers:
            hidden.append(torch.relu(convolve(layer, hidden[-1], graph)))
        fused = torch.cat(hidden, dim=1)
        scores = self.head.readout.second(torch.tanh(self.head.readout.first(fused)))
        owner = torch.arange(SENTENCES, device=fused.device).repeat_interleave(self.offsets.diff())
        weights = softmax(scores, owner, num_nodes=SENTENCES)
        out = fused.new_zeros(SENTENCES, fused.shape[1])
        return out.index_add(0, owner, weights * fused)

    def step(self, name: str) -> tuple[Tensor, list[Tensor]]:
        """One training step (at learning rate 0, so that all versions keep equal weights)."""
        kind = "ours" if name == "ours" else "pyg"
        self.adam[kind].zero_grad()
        vectors = getattr(self, name)()
        functional.cross_entropy(self.classifier(vectors), self.labels).backward()
        self.adam[kind].step()
        grads = [p.grad.flatten() for p in self.parameters[kind] if p.grad is not None]
        return vectors.detach(), grads


def _timed(call: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = clock()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - begin)


def _check_equal(case: Case) -> float:
    """Largest difference of vectors and gradients, relative to the largest of each."""
    worst = 0.0
    ours, our_grads = case.step("ours")
    # Gradients of the two libraries' parameters come in one order per layer; compare them sorted.
    for name in ("sentence", "batched"):
        theirs, their_grads = case.step(name)
        pairs = [(ours, theirs), (_sorted(our_grads), _sorted(their_grads))]
        for one, other in pairs:
            worst = max(worst, float((one - other).abs().max() / other.abs().max()))
    assert worst < 1e-3, f"outputs or gradients differ by {worst:.1e}"
    return worst


def _sorted(grads: list[Tensor]) -> Tensor:
    return torch.cat(grads).sort().values


def _peak_bytes(name: str, n_tokens: int, hidden: int, groups: int, device: str) -> int:
    """Peak memory of a fresh process beyond its batch and weights."""
    command = [sys.executable, "-m", "benchmarks.token_graph", "--peak-of", name]
    command += [
        "--tokens",
        str(n_tokens),
        "--hidden",
        str(hidden),
        "--device",
        device,
        "--groups",
        str(groups),
    ]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_peak(name: str, n_tokens: int, hidden: int, groups: int, device: str) -> None:
    Case(4, hidden, groups, device).step(name)  # libraries loaded, buffers of the runtime made
    case = Case(n_tokens, hidden, groups, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            case.step(name)
        print(torch.cuda.max_memory_allocated() - before)
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
    """Print one line per sentence length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, nargs="+", default=[30, 105, 256, 512])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--peak-of", choices=["ours", "sentence", "batched"])
    args = parser.parse_args()
    if args.peak_of:
        _print_peak(args.peak_of, args.tokens[0], args.hidden, args.groups, args.device)
        return
    print(
        f"{SENTENCES} sentences, d {WIDTH}, h {args.hidden}, K 2, cat, {args.device}, "
        f"{torch.get_num_threads()} threads, {args.clock} clock, torch {torch.__version__}"
    )
    print(
        "tokens density | ms/step: ours sentence batched | speedup over: sentence batched | difference"
    )
    # The processor's time is the fairer clock for one thread on a shared machine.
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    names = ("ours", "sentence", "batched")
    for n_tokens in args.tokens:
        case = Case(n_tokens, args.hidden, args.groups, args.device)
        pairs = float((case.offsets.diff() ** 2).sum())
        density = edges(case.tokens, case.offsets, TAU).shape[1] / pairs
        worst = _check_equal(case)
        times: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(args.rounds):
            for name in names:
                times[name].append(_timed(partial(case.step, name), args.device, clock))
        ours, sentence, batched = (min(times[name]) for name in names)
        print(
            f"{n_tokens:6} {density:7.2f} | {ours:13.1f} {sentence:8.1f} {batched:7.1f} | "
            f"{sentence / ours:22.1f} {batched / ours:7.1f} | {worst:.1e}"
        )
    print("peak MiB beyond the batch: ours sentence batched")
    for n_tokens in args.tokens:
        peaks = [
            _peak_bytes(name, n_tokens, args.hidden, args.groups, args.device) / 2**20
            for name in names
        ]
        print(f"{n_tokens:6} | " + " ".join(f"{peak:8.0f}" for peak in peaks))


if __name__ == "__main__":
    main()
