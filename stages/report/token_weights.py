"""Which tokens a method reads: examples, their pieces of text, and weights relative to uniform.

Axes: T tokens of one text. A weight of 1/T is what a mean would give, and is the unit here, so rows of
different methods and texts of different lengths mean the same by the same colour.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages.report.cells import CellResult
from storage.errors import CorruptDataError, InputError

N_LEVELS = 7
MAX_TOKENS = 256
"""Tokens shown of one text; what is cut is said, with the weight it holds."""

TokenStrings = Callable[[str], list[str] | None]
"""Digest of a text to its tokens, as many as there are weights; None where they are not known."""


@runtime_checkable
class TaskCorpus(Protocol):
    """What a report needs to know of a task's corpus."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    @property
    def examples(self) -> pa.Table: ...
    @property
    def label_names(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Piece:
    """One token as it is read."""

    text: str
    glued: bool
    """Continues the word before it, without a space."""
    ratio: float
    """Weight in units of the uniform weight."""

    @property
    def level(self) -> int:
        """0 to 6: a quarter of uniform or less, a half, uniform, 2, 4, 8, 16 times or more."""
        if self.ratio <= 0:
            return 0
        return min(max(round(math.log2(self.ratio)) + 2, 0), N_LEVELS - 1)


@dataclass(frozen=True)
class WeightRow:
    """One method's reading of an example."""

    method: str
    prediction: str
    correct: bool | None
    """None without a label."""
    pieces: tuple[Piece, ...]
    n_cut: int
    """Tokens beyond the shown ones."""
    cut_share: float
    """Weight that these hold."""
    heaviest: tuple[tuple[str, float], ...]
    """At most three tokens with the most weight, and their shares; none below half a percent."""

    @property
    def is_uniform(self) -> bool:
        """All shown tokens have the weight of a mean, to a percent."""
        return all(abs(piece.ratio - 1) < 0.01 for piece in self.pieces)


@dataclass(frozen=True)
class Example:
    """One test text under every method that has token weights."""

    task: str
    label: str
    n_tokens: int
    rows: tuple[WeightRow, ...]


@dataclass(frozen=True)
class _Weighted:
    """One method's weights and predictions on a task, by text index."""

    method: str
    digests: dict[int, str]
    weights: dict[int, np.ndarray]
    outcomes: dict[int, dict[str, Any]]


def token_examples(
    results: Sequence[CellResult],
    corpora: Mapping[str, TaskCorpus],
    tokens: TokenStrings,
    n_examples: int,
) -> tuple[Example, ...]:
    """Test texts for which every weighted method of their task has weights, tasks in turn.

    The cells of the smallest seed are read. Labels alternate where the texts allow it.

    Raises:
        CorruptDataError: a file lacks a column, or a text has not as many weights as tokens.
        InputError: no corpus for a task.
    """
    queues = {task: _candidates(found) for task, found in _weighted(results).items()}
    examples: list[Example] = []
    last_label: object = None
    while len(examples) < n_examples and any(texts for _, texts in queues.values()):
        for task, (methods, texts) in queues.items():
            if not texts or len(examples) == n_examples:
                continue
            labels = {t: methods[0].outcomes[t]["label"] for t in texts}
            text = next((t for t in texts if labels[t] != last_label), texts[0])
            texts.remove(text)
            strings = tokens(methods[0].digests[text])
            if strings is not None:
                last_label = labels[text]
                examples.append(_example(task, _names(corpora, task), methods, text, strings))
    return tuple(examples)


def _names(corpora: Mapping[str, TaskCorpus], task: str) -> tuple[str, ...]:
    if task not in corpora:
        raise InputError(
            f"there are results on task {task!r} but only texts of {sorted(corpora)}; pass its corpus as well"
        )
    return corpora[task].label_names


def _weighted(results: Sequence[CellResult]) -> dict[str, list[_Weighted]]:
    """By task: every method that has weights, from its smallest seed."""
    found: dict[str, list[_Weighted]] = {}
    chosen: dict[tuple[str, str], CellResult] = {}
    for r in results:
        kept = chosen.setdefault((r.cell.task, r.cell.method), r)
        if r.cell.seed < kept.cell.seed:
            chosen[r.cell.task, r.cell.method] = r
    for (task, method), r in chosen.items():
        path = r.cell.folder / "token_weights.parquet"
        if r.cell.role == "method" and path.exists():
            rows = _read(path, ("text", "digest", "weights"))
            outcomes = _read(
                r.cell.folder / "predictions.parquet", ("split", "text", "label", "prediction")
            )
            found.setdefault(task, []).append(
                _Weighted(
                    method=method,
                    digests={row["text"]: row["digest"] for row in rows},
                    weights={row["text"]: np.asarray(row["weights"], np.float64) for row in rows},
                    outcomes={row["text"]: row for row in outcomes if row["split"] == "test"},
                )
            )
    return found


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    try:
        return pq.read_table(path, columns=list(columns)).to_pylist()
    except (FileNotFoundError, pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise CorruptDataError(
            f"{path} cannot be read with the columns {list(columns)}: {error}; score it again"
        ) from error


def _candidates(methods: list[_Weighted]) -> tuple[list[_Weighted], list[int]]:
    first, *others = methods
    texts = [
        text
        for text in first.weights
        if all(text in m.weights for m in others) and all(text in m.outcomes for m in methods)
    ]
    return methods, texts


def _example(
    task: str, names: Sequence[str], methods: Sequence[_Weighted], text: int, strings: list[str]
) -> Example:
    label = methods[0].outcomes[text]["label"]
    return Example(
        task=task,
        label=_label(label, names),
        n_tokens=len(strings),
        rows=tuple(_row(m, text, strings, names) for m in methods),
    )


def _row(method: _Weighted, text: int, strings: list[str], names: Sequence[str]) -> WeightRow:
    weights_T = method.weights[text]
    if len(weights_T) != len(strings):
        raise CorruptDataError(
            f"text {method.digests[text][:12]} has {len(weights_T)} weights under {method.method!r} but "
            f"{len(strings)} tokens; they were made from different features, so score it again"
        )
    outcome = method.outcomes[text]
    label, prediction = outcome["label"], outcome["prediction"]
    words = readable(strings)
    pieces = tuple(
        Piece(word, glued, float(weight * len(strings)))
        for (word, glued), weight in zip(words, weights_T, strict=True)
    )
    top = np.argsort(-weights_T, kind="stable")[:3]
    return WeightRow(
        method=method.method,
        prediction=_label(prediction, names),
        correct=None if label is None or not names else label == prediction,
        pieces=pieces[:MAX_TOKENS],
        n_cut=max(len(pieces) - MAX_TOKENS, 0),
        cut_share=float(weights_T[MAX_TOKENS:].sum()),
        heaviest=tuple((words[i][0], float(weights_T[i])) for i in top if weights_T[i] >= 0.005),
    )


def _label(value: float | None, names: Sequence[str]) -> str:
    if value is None:
        return "–"
    if value.is_integer() and 0 <= value < len(names):
        return names[int(value)]
    return f"{value:.3g}"


def readable(tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Tokens as (text, glued to the one before), for WordPiece, byte-level BPE and SentencePiece."""
    if any("Ġ" in t for t in tokens):
        return [
            (_from_bytes(t.removeprefix("Ġ")), i > 0 and t[:1] != "Ġ") for i, t in enumerate(tokens)
        ]
    if any("▁" in t for t in tokens):
        return [
            (t.replace("▁", " ").strip() or "␣", i > 0 and t[:1] != "▁")
            for i, t in enumerate(tokens)
        ]
    return [(t.removeprefix("##"), i > 0 and t.startswith("##")) for i, t in enumerate(tokens)]


def _from_bytes(token: str) -> str:
    """Undo the printable alphabet of byte-level BPE; a token may hold a part of a character only."""
    if not all(c in _BYTE_OF for c in token):
        return token  # a special token, which is not made of bytes
    text = bytes(_BYTE_OF[c] for c in token).decode("utf-8", errors="replace")
    return text.replace("\n", "↵") or "␣"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for 256, 257, ..."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
