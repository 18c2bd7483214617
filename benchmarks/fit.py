"""An epoch of training over cached sentences: seconds, tokens a second.

    OMP_NUM_THREADS=2 python -m benchmarks.fit [--texts 10000] [--batch-sizes 32 64] [--heads glot] [--json]

The training loop of a fit without its evaluation on dev: a reader that holds float16 features of width 384
in memory, shuffled batches, a head with the defaults of its config, a classifier, Adam. Texts have random
lengths (log-normal, mean about 25, 3 to 128) and random states around groups of directions, one pair of
tokens in `--groups` connected.
"""

import argparse
import time
from statistics import median

import numpy as np
import torch

from benchmarks.measuring import Finding, show
from permafrost.stages.fit import FitConfig, OptimConfig
from permafrost.stages.fit.models import TaskFacts
from permafrost.stages.fit.run import HeadTrainee
from permafrost.stages.fit.sources import Singles
from permafrost.stages.fit.trainer import Trainer
from permafrost.stages.heads import GlotHead, HeadConfig, MlpHead, ScorerHead
from permafrost.storage.ragged import Ragged, offsets_of
from permafrost.storage.readers import InMemoryReader

WIDTH = 384
CPU = torch.device("cpu")
HEADS: dict[str, HeadConfig] = {"glot": GlotHead(), "scorer": ScorerHead(), "mlp": MlpHead()}
FACTS = TaskFacts("classification", ("class 0", "class 1"))


def sentences(n_texts: int, groups: int) -> Singles:
    """Random features of sentences, with random labels."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(22), 0.5, n_texts), 3, 128).astype(np.int64)
    kinds = rng.integers(0, groups, lengths.sum())
    rows = 1.5 * rng.standard_normal((groups, WIDTH), dtype=np.float32)[kinds]
    rows += rng.standard_normal(rows.shape, dtype=np.float32)
    features = Ragged(rows.astype(np.float16), offsets_of(lengths))
    reader = InMemoryReader("hidden/6", features, "float16")
    return Singles(reader, rng.integers(0, 2, n_texts))


def epochs(args: argparse.Namespace, head: str, batch_size: int, train: Singles) -> Finding:
    """Epochs of one head."""
    optim = OptimConfig(batch_size=batch_size, max_epochs=args.rounds + 1)
    config = FitConfig(head=HEADS[head], seed=0, optim=optim)
    trainee = HeadTrainee(config, FACTS, train, None, CPU)
    trainer = Trainer(trainee, trainee.plan)
    seconds: list[float] = []
    for epoch in range(1, args.rounds + 2):
        begin = time.perf_counter()
        n_steps = sum(1 for _ in trainer.steps(epoch))
        seconds.append(time.perf_counter() - begin)
    n_tokens = int(train.reader.lengths.sum())
    first, later = seconds[0], median(seconds[1:])
    return Finding(
        f"{head}, batches of {batch_size}: seconds of an epoch",
        later,
        "<= 10" if head == "glot" else "",
        f"{n_steps} steps, {n_tokens / later:,.0f} tokens/s; {min(seconds[1:]):.2f} to "
        f"{max(seconds[1:]):.2f} s, the first {first:.2f} s",
    )


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--heads", nargs="+", choices=[*HEADS], default=["glot", "scorer"])
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    train = sentences(args.texts, args.groups)
    lengths = train.reader.lengths
    findings = [
        epochs(args, head, batch_size, train)
        for head in args.heads
        for batch_size in args.batch_sizes
    ]
    title = (
        f"fit: {args.texts:,} texts of {lengths.mean():.1f} tokens, width {WIDTH}, {args.rounds} rounds, "
        f"torch {torch.__version__}"
    )
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
