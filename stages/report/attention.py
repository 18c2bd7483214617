"""What the backbone itself attends to: stored attention rows of a few test texts, block by block.

A row is the softmax with which one query, the readout token, weighs every token of the input. Here it is
averaged over attention heads, and shown in the same way as token weights.
Axes: T tokens of one input, H attention heads, K blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from jaxtyping import Float

from permafrost.stages.metrics.vector_map import spread_evenly
from permafrost.stages.report.cells import TaskCorpus, label_text
from permafrost.stages.report.tokens import ReadToken, Token, notation_of, readable
from permafrost.stages.report.weighed_text import Example, WeightRow, passage_of
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import text_digest

MOST_BLOCKS = 6
"""Maximum number of blocks shown; of more, this many are chosen, evenly from the first to the last."""


@dataclass(frozen=True)
class TextAttention:
    """The attention rows of one input."""

    tokens: Sequence[Token]
    """All tokens of the input, including prompt words and special tokens."""
    rows: Mapping[int, Float[np.ndarray, "t h"]]
    """Attention weights by block, one row per token and one column per head."""


@dataclass(frozen=True)
class AttentionRows:
    """Attention rows in a store."""

    recipe: str
    """The recipe under which they were computed."""
    blocks: tuple[int, ...]
    """Ascending."""
    read: Callable[[Sequence[str], Sequence[int]], Mapping[str, TextAttention]]
    """Gives, for digests of texts and for blocks, the rows of those texts that are stored, by digest."""

    @property
    def shown(self) -> tuple[int, ...]:
        """The blocks that a report shows."""
        return tuple(self.blocks[i] for i in spread_evenly(len(self.blocks), MOST_BLOCKS))


def attention_examples(
    stored: AttentionRows, corpora: Mapping[str, TaskCorpus], n_examples: int
) -> tuple[Example, ...]:
    """Test texts with one row per block: tasks in turn, each task's texts spread evenly over its test split.

    For pairs, the first text of each is used. Texts without stored rows are left out.

    Raises:
        CorruptDataError: a text has a different number of tokens than of weights.
    """
    chosen = _chosen(corpora, n_examples)
    if not chosen:
        return ()
    digests = {text_digest(corpora[task].texts[text]) for task, text, _ in chosen}
    attention = stored.read(sorted(digests), stored.shown)
    notation = notation_of(token for found in attention.values() for token in found.tokens)
    examples: list[Example] = []
    for task, text, label in chosen:
        digest = text_digest(corpora[task].texts[text])
        if digest in attention:
            found = attention[digest]
            words = readable(found.tokens, notation)
            examples.append(_example(task, label, digest, words, found.rows, stored.shown))
    return tuple(examples)


def _chosen(
    corpora: Mapping[str, TaskCorpus], n_examples: int
) -> list[tuple[str, int, str | None]]:
    """Task, index of the text, and the name of its class."""
    tested = {
        task: rows
        for task, corpus in corpora.items()
        if (
            rows := corpus.examples.filter(pc.equal(corpus.examples.column("split"), "test"))
        ).num_rows
    }
    shares = {task: len(range(i, n_examples, len(tested))) for i, task in enumerate(tested)}
    queues: list[list[tuple[str, int, str | None]]] = []
    for task, rows in tested.items():
        corpus = corpora[task]
        picked = rows.take(spread_evenly(rows.num_rows, shares[task]))
        is_single = corpus.task == "classification"
        queues.append(
            [
                (task, text, label_text(label, corpus) if is_single else None)
                for text, label in zip(
                    picked.column("text").to_pylist(),
                    picked.column("label").to_pylist(),
                    strict=True,
                )
            ]
        )
    turns = range(max(map(len, queues), default=0))
    return [queue[turn] for turn in turns for queue in queues if turn < len(queue)]


def _example(
    task: str,
    label: str | None,
    digest: str,
    words: Sequence[ReadToken],
    attention: Mapping[int, Float[np.ndarray, "h t"]],
    blocks: Sequence[int],
) -> Example:
    rows: list[WeightRow] = []
    for block in blocks:
        weights_T = attention[block].astype(np.float64).mean(axis=1)
        if len(weights_T) != len(words):
            raise CorruptDataError(
                f"text {digest[:12]} has {len(weights_T)} attention weights at block {block} but "
                f"{len(words)} tokens; run 'permafrost verify' on its store"
            )
        rows.append(WeightRow(f"block {block}", None, None, (passage_of(words, weights_T),)))
    return Example(task, label, (len(words),), tuple(rows))
