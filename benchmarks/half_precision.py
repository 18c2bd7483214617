"""Whether training in bfloat16 grows slower as it goes on, with passes padded to few sizes and as they are.

    OMP_NUM_THREADS=1 python -m benchmarks.half_precision EXPERIMENT TASK [--batch 32] [--rounds 200]
        [--set ...]

Steps as in `benchmarks.by_length`, on the same batches, under autocast, in two processes beside each other:
one pads passes on to a multiple of `COMPILED_TOKENS` tokens, the other to their longest text alone, so that
oneDNN compiles products for nearly every pass. Prints milliseconds for a real token in the first and the last
quarter of the rounds, and the ratio of the last ones.
"""

import argparse
import multiprocessing

import torch

from benchmarks.by_length import Batches, arguments
from benchmarks.measuring import Finding, show
from permafrost.stages.finetune import by_length

VERSIONS = {"few sizes": by_length.COMPILED_TOKENS, "every size": 1}


def milliseconds(args: argparse.Namespace, multiple: int) -> list[float]:
    """For a token of each round."""
    torch.set_num_threads(1)
    by_length.COMPILED_TOKENS = multiple
    batches, found = Batches(args), list[float]()
    for _ in range(args.rounds):
        encoded, tokens = batches.next()
        took, _ = batches.step(by_length.read_by_length, encoded, tokens, low=True)
        found.append(1000 * took / int(encoded.token_ids.lengths.sum() + len(encoded)))
    return found


def measure(args: argparse.Namespace) -> list[Finding]:
    """The findings of both processes."""
    with multiprocessing.get_context("spawn").Pool(len(VERSIONS)) as pool:
        given = [(args, multiple) for multiple in VERSIONS.values()]
        found = dict(zip(VERSIONS, pool.starmap(milliseconds, given, chunksize=1), strict=True))
    quarter = max(args.rounds // 4, 1)
    last = {name: sum(each[-quarter:]) / quarter for name, each in found.items()}
    first = {name: sum(each[:quarter]) / quarter for name, each in found.items()}
    return [
        Finding(
            "processor time at the end, every size / few sizes",
            last["every size"] / last["few sizes"],
        ),
        *(Finding(f"ms for a token at first, {name}", ms) for name, ms in first.items()),
        *(Finding(f"ms for a token at the end, {name}", ms) for name, ms in last.items()),
    ]


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.set_defaults(rounds=200)
    args = parser.parse_args(given)
    show("steps in half precision, as they go on", measure(args), as_json=args.json)


if __name__ == "__main__":
    main()
