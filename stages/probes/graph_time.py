"""What GLOT's token graph costs by length, on real token states.

Source: GLOT, table 10 (time to build the graph against the number of tokens). Beside it stand a training
step of GLOT and the share of pairs that are connected, on which both depend. Texts of a wanted length are
the stored token states of the corpus, one text after the other, cut into pieces.

These numbers are measurements of one machine at one moment. Their key holds what was measured, not where:
a rerun reads them again, and another machine has to measure under a home of its own.

Axes: T tokens of a batch.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Annotated

import numpy as np
import torch
from permafrost.stages.probes.token_states import TokenStates
from pydantic import Field, field_validator

from permafrost.stages.bounds import MAX_STEPS, MAX_TEXTS
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import Features
from permafrost.stages.heads import GlotHead
from permafrost.stages.heads.graph.token_graph import build_graph, edges
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress
from permafrost.storage.readers import FeatureReader

_TEXTS_AT_A_TIME = 64
_MAX_LENGTH = 1 << 14
"""Tokens of a text: a graph takes memory with their square."""


class GraphTimeConfig(TokenStates):
    """Which graphs are timed."""

    head: GlotHead = GlotHead()
    """Its `tau` decides what is connected; the rest matters to the training step alone."""
    lengths: tuple[Annotated[int, Field(le=_MAX_LENGTH)], ...] = Field(
        default=(32, 64, 128, 256, 512), min_length=1
    )
    """Tokens of a text."""
    n_texts: int = Field(default=8, ge=1, le=MAX_TEXTS)
    """Texts of a batch."""
    n_rounds: int = Field(default=5, ge=1, le=MAX_STEPS)
    """The median of so many is reported, after one that does not count."""

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if min(lengths) < 1:
            raise ValueError(f"a text of {min(lengths)} tokens has no graph; give lengths from 1")
        return tuple(sorted(set(lengths)))


def probe_graph_time(
    config: GraphTimeConfig, prompt_features: Sequence[Features], corpus: Corpus, progress: Progress
) -> ProbeCurves:
    """Milliseconds for each text, by its length; labels and splits play no role.

    Raises:
        InputError: an ensemble of prompts, or fewer stored tokens than one batch of the longest needs.
    """
    n_tokens = config.n_texts * max(config.lengths)
    states = first_states(config.reader(prompt_features), n_tokens)
    if len(states) < n_tokens:
        raise InputError(
            f"{config.n_texts} texts of {max(config.lengths)} tokens were asked for, {n_tokens} in all, and "
            f"the corpus has {len(states)}; lower 'n_texts' or 'lengths', or give more texts"
        )
    points: list[Point] = []
    progress.start("probe", len(config.lengths), "lengths")
    try:
        for length in config.lengths:
            points += _points(config, states[: config.n_texts * length], length)
            progress.advance(1)
    finally:
        progress.finish()
    return ProbeCurves("tokens", tuple(points))


def first_states(reader: FeatureReader, n_tokens: int) -> torch.Tensor:
    """The first token states of a corpus, `[at most n_tokens, width]` float32."""
    rows: list[np.ndarray] = []
    missing = n_tokens
    for _, texts in reader.in_order(_TEXTS_AT_A_TIME):
        rows.append(texts.data[:missing].astype(np.float32))
        missing -= len(rows[-1])
        if missing <= 0:
            break
    return torch.from_numpy(np.concatenate(rows))


def _points(config: GraphTimeConfig, tokens: torch.Tensor, length: int) -> list[Point]:
    offsets = torch.arange(0, len(tokens) + 1, length)
    head = config.head.build(tokens.shape[1], torch.Generator().manual_seed(0))
    tau = config.head.tau

    def step() -> None:
        head.zero_grad()
        head(tokens, offsets).square().mean().backward()

    n_edges = edges(tokens, offsets, tau).shape[1]
    n_pairs = config.n_texts * length * length
    measured = {
        "graph, ms": 1e3 * _seconds(config, lambda: build_graph(tokens, offsets, tau)),
        "GLOT's training step, ms": 1e3 * _seconds(config, step),
    }
    values = {name: value / config.n_texts for name, value in measured.items()}
    return [
        *(Point(name, "number", length, str(length), value) for name, value in values.items()),
        Point("connected pairs", "share", length, str(length), n_edges / n_pairs),
    ]


def _seconds(config: GraphTimeConfig, run: Callable[[], object]) -> float:
    run()
    seconds: list[float] = []
    for _ in range(config.n_rounds):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)
