"""How the texts and labels of two corpora differ, counted on hashes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from permafrost.stages.corpus.corpus import stored_classes, stored_digests
from permafrost.storage.errors import PermafrostError
from permafrost.storage.replica import fetch_missing
from permafrost.storage.texts import Texts

Hashes = NDArray[np.uint64]
_AT_A_TIME = 1 << 16
_DIGITS = 16
"""Hexadecimal digits of a digest that are kept, 64 bits: among 10^6 texts, two share them once in 4 * 10^7
comparisons."""
_VALUES = np.full(256, 255, np.uint8)
_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class CorpusParts:
    """What two corpora are compared by."""

    texts: Hashes
    """Of each text `[n]`."""
    examples: pa.Table
    """With the columns `split`, `text`, `text_pair`, `label`."""
    classes: tuple[str, ...] = ()
    """Names of the classes that labels are indices of; empty for other labels."""

    @classmethod
    def of(
        cls, digests: Iterable[Sequence[str]], examples: pa.Table, classes: Sequence[str] = ()
    ) -> "CorpusParts":
        """Args: digests: SHA-256 of each text, in blocks. examples, classes: those of the corpus."""
        return cls(_hashes(digests), examples, tuple(classes))

    @classmethod
    def stored(cls, folder: Path) -> "CorpusParts | None":
        """Of the folder of a published corpus; None if it is gone or damaged."""
        columns = ["split", "text", "text_pair", "label"]
        try:
            fetch_missing(
                [folder / n for n in ("texts.parquet", "examples.parquet", "corpus.json")]
            )
            examples = pq.read_table(folder / "examples.parquet", columns=columns)
            return cls.of(stored_digests(folder), examples, stored_classes(folder))
        except (OSError, ValueError, LookupError, PermafrostError):
            return None


@dataclass(frozen=True)
class TextCounts:
    """How two corpora differ."""

    new: int
    gone: int
    changed: int
    """Texts in place of which another one stands between the same neighbours."""
    relabelled: int
    """Examples with the same texts and another label."""

    def __str__(self) -> str:
        """As people read it: `50 texts new, 3 gone, 2 changed`; empty if nothing differs."""
        counts = {"new": self.new, "gone": self.gone, "changed": self.changed}
        texts = [f"{n:,} {what}" for what, n in counts.items() if n]
        if texts:
            first, _, what = texts[0].partition(" ")
            texts[0] = f"{first} {'text' if first == '1' else 'texts'} {what}"
        labels = "label" if self.relabelled == 1 else "labels"
        return ", ".join(
            [*texts, *([f"{self.relabelled:,} {labels} changed"] if self.relabelled else [])]
        )


def compare_texts(old: CorpusParts, new: CorpusParts) -> TextCounts:
    """Count texts that came, went and were replaced, and examples that changed their label."""
    before, after = old.texts, new.texts
    gone, came = _unmatched(before, after)
    changed = _replaced(before, gone, after, came) if gone.any() and came.any() else 0
    classes = {name: at for at, name in enumerate(dict.fromkeys((*old.classes, *new.classes)))}
    relabelled = _relabelled(_examples(old, classes), _examples(new, classes))
    return TextCounts(
        new=int(came.sum()) - changed,
        gone=int(gone.sum()) - changed,
        changed=changed,
        relabelled=relabelled,
    )


def _hashes(blocks: Iterable[Sequence[str]]) -> Hashes:
    """The first 64 bits of each digest `[n]`."""
    parts = [
        _first_bits(block[at : at + _AT_A_TIME])
        for block in blocks
        for at in range(0, len(block), _AT_A_TIME)
    ]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _first_bits(digests: Sequence[str]) -> Hashes:
    first: Any = pc.utf8_slice_codeunits(pa.array(Texts.of(digests)), 0, _DIGITS)
    letters = np.frombuffer(first.buffers()[2], np.uint8)[: len(digests) * _DIGITS]
    digits = _VALUES[letters.reshape(-1, _DIGITS)]
    pairs = digits[:, ::2] << 4 | digits[:, 1::2]
    return np.ascontiguousarray(pairs).view(">u8").reshape(-1).astype(np.uint64)


def _unmatched(before: Hashes, after: Hashes) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which texts of either corpus the other one does not have."""
    order = np.argsort(after)
    found = _places(before, after[order])
    came = np.ones(len(after), np.bool_)
    came[order[found[found >= 0]]] = False
    return found < 0, came


def _places(keys: Hashes, ordered: Hashes) -> NDArray[np.int64]:
    """Where each key first stands in keys in order `[n]`; -1 for one that is not there."""
    if not len(ordered):
        return np.full(len(keys), -1)
    found = np.searchsorted(ordered, keys)
    # Those behind the last one.
    np.minimum(found, len(ordered) - 1, out=found)
    found[ordered[found] != keys] = -1
    return found


def _replaced(
    before: Hashes, gone: NDArray[np.bool_], after: Hashes, came: NDArray[np.bool_]
) -> int:
    """Pairs of a text that went and one that came behind the same kept text."""
    sides = [
        np.unique(_kept_before(texts, some)[some], return_counts=True)
        for texts, some in ((before, gone), (after, came))
    ]
    (left, n_left), (right, n_right) = sides
    _, at, at_other = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return int(np.minimum(n_left[at], n_right[at_other]).sum())


def _kept_before(texts: Hashes, moved: NDArray[np.bool_]) -> Hashes:
    """For each text the nearest one before it that both corpora have `[n]`; 0 at the beginning."""
    last = np.maximum.accumulate(np.where(moved, 0, np.arange(1, len(texts) + 1)))
    return np.concatenate([np.zeros(1, np.uint64), texts])[last]


def _examples(
    corpus: CorpusParts, classes: Mapping[str, int]
) -> tuple[Hashes, NDArray[np.float64]]:
    """A hash of the split and the texts of each example `[n]`, and its label; of classes, which either corpus
    may number otherwise, the numbers given."""
    table, texts = corpus.examples, corpus.texts
    text = table.column("text").to_numpy()
    pair = table.column("text_pair").fill_null(-1).to_numpy()
    padded = np.append(texts, np.uint64(0))
    split = table.column("split").combine_chunks().dictionary_encode()
    named = _first_bits_of_names(split.dictionary.to_pylist())[split.indices.to_numpy()]
    with np.errstate(over="ignore"):
        keys = (padded[text] * _MIX ^ padded[pair]) * _MIX ^ named
    labels = table.column("label").cast(pa.float64()).to_numpy(zero_copy_only=False)
    if not corpus.classes:
        return keys, labels
    numbers = np.array([*(classes[name] for name in corpus.classes), np.nan])
    return keys, numbers[np.nan_to_num(labels, nan=-1).astype(np.int64)]


def _first_bits_of_names(names: Sequence[str]) -> Hashes:
    return np.array([int.from_bytes(n.encode()[:8].ljust(8, b"\0")) for n in names], np.uint64)


def _relabelled(
    old: tuple[Hashes, NDArray[np.float64]], new: tuple[Hashes, NDArray[np.float64]]
) -> int:
    """Examples whose label differs from that of the first earlier one with the same split and texts."""
    (before, labels), (after, others) = old, new
    order = np.argsort(before, kind="stable")
    found = _places(after, before[order])
    there = found >= 0
    earlier, later = labels[order[found[there]]], others[there]
    return int(((earlier != later) & ~(np.isnan(earlier) & np.isnan(later))).sum())
