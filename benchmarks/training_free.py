"""Methods without training: sweeps from the store against running the backbone again, and what recipes cost.

    OMP_NUM_THREADS=1 python -m benchmarks.training_free [--only sweep tau recipes] [--clock cpu] [--json]

Texts are synthetic. `sweep`: every layer by every aggregation, from a store that is opened anew each time
(files in the page cache, checksums verified again), against one forward pass of the bare backbone per
cell of that grid. One pass is timed, over the very batches of the extraction, and multiplied by the
number of cells; what a cell would then do with the states is not counted. `tau`: vectors of an untrained GLOT
at five thresholds (GLOT, table 8), which read the store once, against a pass of the backbone per threshold;
the first line is what the store saves, in the second both sides also pool. `recipes`: the forward pass
under a recipe, without a store, against plain text. Every text has the same number of tokens. `equal
length` compares with ordinary tokens in the place of all that the recipe adds, so that only what it
changes in the pass is left; `same text` compares with the text alone. With PERMAFROST_MODELS, a folder
of models, all also run on the decoder mixed6m-gqa. `--clock cpu` measures the processor's time, the
fairer clock for one thread on a machine that does other work too.
"""

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.backbone_runs import (
    QUIET,
    WORDS,
    bare_model,
    batches_of,
    run_bare,
    run_ours,
    synthetic,
    target_of,
)
from benchmarks.measuring import Finding, interleaved, measured, ratio, show, spread
from permafrost.stages.embed import EmbedConfig, StoredFeatures, embed_layers
from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import (
    ContrastiveRecipe,
    EchoRecipe,
    Encoded,
    HtpRecipe,
    PlainRecipe,
    Recipe,
    TokenPrependingRecipe,
    encode,
    resolve_recipe,
)
from permafrost.stages.extraction.recipes.inputs import tokenise
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.stages.heads import GlotHead
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import text_digest
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import open_reader

DECODER = "mixed6m-gqa"
OF_STATES: tuple[str, ...] = ("hs", "last", "max", "weighted_mean")
"""Not `mean`, which is hs."""
OF_VALUES: tuple[str, ...] = ("va", "wva", "aligned_wva")
RANDOM = {"n_layers": 12, "d_model": 512, "n_heads": 8}
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of GLOT's tables 4 and 8."""
POOLED_AT_ONCE = 64
"""Texts."""
ORDINARY = 7
"""Any id that is a token in every vocabulary."""

LEAST_SECONDS = 0.5
"""A recipe's pass is repeated so often that one over plain text takes at least so long."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

RECIPES: dict[str, Recipe] = {
    "token_prepending": TokenPrependingRecipe(),
    "htp, every sentence": HtpRecipe(),
    "htp, every 8 tokens": HtpRecipe(block="tokens", size=8),
    "contrastive": ContrastiveRecipe(),
    # Without words around the copies, so that the text twice is all that is added.
    "echo": EchoRecipe(template="{first} {text}"),
}
TARGETS = {
    "token_prepending / plain, equal length": "<= 1.3",
    "htp, every sentence / plain, equal length": "<= 1.3",
    "htp, every 8 tokens / plain, equal length": "<= 1.3",
    # "About twice": the tokens are, and a tenth is left for what grows faster than they do.
    "echo / plain, same text": "<= 2.2",
}


def decoders() -> list[str]:
    """The trained decoder, where there is one."""
    folder = os.environ.get("PERMAFROST_MODELS")
    return [str(Path(folder) / DECODER)] if folder else []


def sweep(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """(a) every layer by every aggregation."""
    for source in [args.backbone, *decoders()]:
        yield from _swept(args, source, folder / "sweep")


def grid(sizes: BackboneSizes) -> list[EmbedConfig]:
    """One config per aggregation, over every layer that there is: states from the embedding output on."""
    states = f"0-{sizes.n_layers}" + (",final" if sizes.has_final_norm else "")
    layers = dict.fromkeys(OF_STATES, states) | dict.fromkeys(OF_VALUES, "all")
    return [EmbedConfig.model_validate({"method": m, "layers": of}) for m, of in layers.items()]


def _swept(args: argparse.Namespace, source: str, home: Path) -> list[Finding]:
    target, texts = target_of(source), synthetic(args.tokens_each, args.words)
    backbone, model = load_backbone(target.files, "float32", "cpu"), bare_model(target, "sdpa")
    model.config.use_cache = False
    stores: list[FeatureStore] = []
    batches = batches_of(
        lambda: stores.append(run_ours(target, home, texts, backbone, args.batch_tokens)), backbone
    )
    root = stores[0].root
    digests = [text_digest(t) for t in texts]
    configs = grid(target.sizes)

    def from_store() -> int:
        store = FeatureStore.open(root)
        features = StoredFeatures(store, target.sizes, digests)
        return sum(len(embed_layers(config, features, QUIET)) for config in configs)

    n_cells = from_store()
    run_bare(model, batches[:1])
    times = interleaved(
        {"store": from_store, "backbone": partial(run_bare, model, batches)},
        args.rounds,
        clock=CLOCKS[args.clock],
    )
    once = ratio(times, "backbone", "store")
    name = Path(source).name
    seconds = f"store {median(times['store']):.2f} s, one pass {median(times['backbone']):.2f} s"
    return [
        Finding(
            f"{name}: {n_cells} cells, a bare pass per cell / all from the store",
            once * n_cells,
            ">= 100",
            f"{len(texts)} texts; {seconds}",
        ),
        Finding(
            f"{name}: {n_cells} cells, one bare pass for all / all from the store",
            once,
            "",
            spread(times, "backbone", "store"),
        ),
    ]


def taus(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """(b) an untrained GLOT at every threshold."""
    for source in [args.backbone, *decoders()]:
        yield from _over_thresholds(args, source, folder / "tau")


def _over_thresholds(args: argparse.Namespace, source: str, home: Path) -> list[Finding]:
    sizes, texts = target_of(source).sizes, synthetic(args.tokens_each, args.words)
    array = "hidden/final" if sizes.has_final_norm else f"hidden/{sizes.n_layers}"
    target = target_of(source, array.replace("/", "="))
    backbone, model = load_backbone(target.files, "float32", "cpu"), bare_model(target, "sdpa")
    model.config.use_cache = False
    stores: list[FeatureStore] = []
    batches = batches_of(
        lambda: stores.append(run_ours(target, home, texts, backbone, args.batch_tokens)), backbone
    )
    root, digests = stores[0].root, [text_digest(t) for t in texts]
    heads = [
        GlotHead(tau=tau).build(sizes.d_model, torch.Generator().manual_seed(0))
        for tau in THRESHOLDS
    ]

    def from_store() -> list[tuple[torch.Tensor, torch.Tensor]]:
        reader = open_reader(FeatureStore.open(root), array, digests, budget_bytes=1 << 30)
        return [
            (torch.from_numpy(states.data), torch.from_numpy(states.offsets))
            for _, states in reader.in_order(POOLED_AT_ONCE)
        ]

    held = from_store()

    @torch.inference_mode()
    def pool() -> None:
        for head in heads:
            for states, offsets in held:
                head(states, offsets)

    pool()
    run_bare(model, batches[:1])
    times = interleaved(
        {"store": from_store, "pool": pool, "backbone": partial(run_bare, model, batches)},
        args.rounds,
        clock=CLOCKS[args.clock],
    )
    store, pooled, once = (median(times[name]) for name in ("store", "pool", "backbone"))
    name, n = Path(source).name, len(heads)
    seconds = (
        f"store {store:.2f} s, one pass {once:.2f} s, pooling at {n} thresholds {pooled:.2f} s"
    )
    return [
        Finding(
            f"{name}: {n} thresholds, a bare pass each / the states from the store",
            n * ratio(times, "backbone", "store"),
            ">= 100",
            f"{len(texts)} texts; {seconds}",
        ),
        Finding(
            f"{name}: {n} thresholds, a bare pass each / from the store, both with pooling",
            (n * once + pooled) / (store + pooled),
            "",
            "training would add as much to both sides",
        ),
    ]


def recipes(args: argparse.Namespace, folder: Path) -> Iterator[Finding]:
    """(c) the forward pass under every recipe."""
    for source in [str(save_random_decoder(folder / "random")), *decoders()]:
        backbone = load_backbone(find_backbone(BackboneConfig(source=source)), "float32", "cpu")
        yield from _costs(args, backbone)


def save_random_decoder(folder: Path, max_positions: int = 2048) -> Path:
    """A decoder of moderate size with random weights, for inputs of up to so many tokens."""
    from tests.stages.extraction.tiny_models import save_model

    d_model, n_heads = RANDOM["d_model"], RANDOM["n_heads"]
    return save_model(
        "llama",
        folder,
        hidden_size=d_model,
        num_hidden_layers=RANDOM["n_layers"],
        num_attention_heads=n_heads,
        num_key_value_heads=n_heads // 2,
        head_dim=d_model // n_heads,
        intermediate_size=8 * d_model // 3,
        initializer_range=0.02,
        max_position_embeddings=max_positions,
    )


@dataclass(frozen=True)
class Case:
    """A batch under a recipe."""

    backbone: Backbone
    recipe: Recipe
    encoded: Encoded

    def run(self) -> None:
        """All blocks, keeping the last states."""
        forward(self.backbone, self.encoded, ["hidden/final"], self.recipe)

    def unaltered(self) -> "Case":
        """As many ordinary tokens, in a pass without changes."""
        ids = self.encoded.token_ids
        plain = replace(
            self.encoded,
            token_ids=Ragged(np.where(ids.data < 0, ORDINARY, ids.data), ids.offsets),
            copies=None,
            auxiliary=None,
        )
        return Case(self.backbone, resolve_recipe(PlainRecipe(), self.backbone.sizes), plain)

    @property
    def n_tokens(self) -> int:
        """Of one text on average, rounded."""
        return round(len(self.encoded.token_ids.data) / len(self.encoded))


def _costs(args: argparse.Namespace, backbone: Backbone) -> Iterator[Finding]:
    texts = equally_long(backbone, args.recipe_texts, args.recipe_tokens)

    def case(recipe: Recipe) -> Case:
        definite = resolve_recipe(recipe, backbone.sizes)
        encoded = encode(definite, backbone.tokenizer, texts, backbone.sizes.max_positions)
        assert not encoded.truncated.any(), "a text does not fit into the context"
        return Case(backbone, definite, encoded)

    plain = case(PlainRecipe())
    for name, recipe in RECIPES.items():
        altered = case(recipe)
        calls = {"altered": altered, "equal length": altered.unaltered(), "same text": plain}
        for each in calls.values():
            each.run()
        begin = time.perf_counter()
        plain.run()
        n_runs = math.ceil(LEAST_SECONDS / (time.perf_counter() - begin))
        runs = {k: partial(_repeat, c.run, n_runs) for k, c in calls.items()}
        times = interleaved(runs, args.rounds, clock=CLOCKS[args.clock])
        for other in ("equal length", "same text"):
            what = f"{name} / plain, {other}"
            yield Finding(
                f"{Path(backbone.files.source).name}: {what}",
                ratio(times, "altered", other),
                TARGETS.get(what, ""),
                f"{altered.n_tokens} / {calls[other].n_tokens} tokens a text; "
                f"{spread(times, 'altered', other)}",
            )


def _repeat(call: Callable[[], None], n_runs: int) -> None:
    for _ in range(n_runs):
        call()


def equally_long(backbone: Backbone, n_texts: int, n_tokens: int) -> list[str]:
    """Texts of sentences of ten words, with as many tokens each, special ones not counted."""
    rng = np.random.default_rng(0)
    texts: list[str] = []
    while len(texts) < n_texts:
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), n_tokens)]
        tens = (words[i : i + 10] for i in range(0, n_tokens, 10))
        text = " ".join(f"{' '.join(ten).capitalize()}." for ten in tens)
        (whole,) = tokenise(backbone.tokenizer, [text])
        places = zip(whole.offsets, whole.special_tokens_mask, strict=True)
        ends = [end for (_, end), special in places if not special]
        text = text[: ends[n_tokens - 1]]
        (cut,) = tokenise(backbone.tokenizer, [text])
        # Cutting inside a word may change how its beginning is split.
        if len(cut.special_tokens_mask) - sum(cut.special_tokens_mask) == n_tokens:
            texts.append(text)
    return texts


PARTS: dict[str, Callable[[argparse.Namespace, Path], Iterator[Finding]]] = {
    "sweep": sweep,
    "tau": taus,
    "recipes": recipes,
}


def main() -> None:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--backbone", default="minilm", help="of the sweeps")
    parser.add_argument("--tokens-each", type=int, default=20_000, help="of the sweeps' corpus")
    parser.add_argument("--words", type=float, default=24, help="median words of its texts")
    parser.add_argument("--recipe-texts", type=int, default=4, help="in the batch of `recipes`")
    parser.add_argument("--recipe-tokens", type=int, default=192, help="of each of its texts")
    parser.add_argument("--batch-tokens", type=int, default=ExtractRuntime().batch_tokens)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    findings = measured(PARTS, args)
    corpora = f"sweeps over {args.tokens_each:,} tokens, recipes on texts of {args.recipe_tokens}"
    title = f"training_free: {corpora}, {args.clock} clock, {args.rounds} rounds"
    show(title, findings, as_json=args.json)


if __name__ == "__main__":
    main()
