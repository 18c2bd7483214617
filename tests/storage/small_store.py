"""A feature store small enough to build in milliseconds, together with what every read must give."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.features.layout import SPAN, Axes, Codec, StoreSizes
from permafrost.storage.features.segment_drafts import SegmentDraft
from permafrost.storage.features.segments import build_table, pack
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import StoreWriter, writing
from permafrost.storage.keys import text_digest

# Chunks of 8 rows of the residual stream, so that a shard has several and a text may cross them.
AXES = Axes(segment_tokens=64, segment_texts=8, chunk_bytes=128)
SIZES = StoreSizes(n_layers=2, d_model=8, d_value=4, n_attn_heads=2)
IDENTITY = StoreIdentity(
    weights_digest="weights",
    tokenizer_digest="tokenizer",
    recipe={"kind": "plain", "specials": {"keep": True}},
    compute_dtype="float32",
    storage_dtype="float16",
    max_length=32,
)
ARRAYS = ("hidden/1", "attention_rows/1", "pooled/hidden_mean/1")


def make_rows(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """Random rows as they lie on disk; bfloat16 as the upper half of float32 bits."""
    values = rng.normal(size=shape).astype(np.float32)
    if dtype == "bool":
        return values > 0
    if dtype == "int32":
        return rng.integers(0, 1000, shape).astype(np.int32)
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def as_float32(rows: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """What a reader in float32 has to give for stored `rows`, written independently of it."""
    if dtype != "bfloat16":
        return rows.astype(np.float32)
    halves = np.zeros((*rows.shape, 2), dtype="<u2")
    halves[..., 1] = rows
    return halves.view("<f4")[..., 0]


@dataclass
class SmallStore:
    """A store and the rows that were put into it."""

    store: FeatureStore
    texts: list[str] = field(default_factory=list)
    rows: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)
    """array -> text -> its rows `[n_tokens, width]`, or `[width]` on the text axis."""

    @property
    def digests(self) -> list[str]:
        return [text_digest(t) for t in self.texts]

    def expected(self, array: str, text: str, *, span: bool = False) -> NDArray[Any]:
        """Stored rows of a text, `[n, width]` on both axes."""
        rows = self.rows[array][text]
        if self.store.spec(array).axis == "text":
            return rows[None]
        return rows[self.rows["span"][text]] if span else rows

    def add(
        self,
        texts: Sequence[str],
        lengths: Sequence[int],
        arrays: Sequence[str] = ARRAYS,
        *,
        whole_span: bool = False,
        seed: int = 0,
    ) -> list[int]:
        """Append texts with random rows; returns their segments."""
        rng = np.random.default_rng(seed)
        sizes = np.array(lengths, dtype=np.int64)
        self.texts += texts
        with writing(self.store) as writer:
            numbers = list(self._lay_out(writer, texts, sizes))
            writer.declare(arrays)
            for number in numbers:
                self.fill(writer, number, ["token_ids", "span", *arrays], rng, whole_span)
        return numbers

    def _lay_out(
        self, writer: StoreWriter, texts: Sequence[str], sizes: NDArray[np.int64]
    ) -> Iterator[int]:
        for members in pack(sizes, self.store.record.axes):
            number = self.store.n_slots()
            table = build_table(
                number,
                self.store.record.axes,
                [texts[i] for i in members],
                sizes[members],
                np.zeros(len(members), np.int64),
                sizes[members],
                np.zeros(len(members), bool),
            )
            writer.add_segment(table, number)
            yield number

    def fill(
        self,
        writer: StoreWriter,
        number: int,
        arrays: Sequence[str],
        rng: np.random.Generator,
        whole_span: bool = False,
    ) -> None:
        """Write cells of one segment, with fresh random rows for texts that have none yet."""
        segment = self.store.segment(number)
        with draft_of(writer, number, arrays, {"library": "1.0"}) as draft:
            for array in arrays:
                spec = self.store.spec(array)
                known = self.rows.setdefault(array, {})
                texts = segment.table.column("text").to_pylist()
                for text, n in zip(texts, segment.lengths.tolist(), strict=True):
                    tail = () if spec.width is None else (spec.width,)
                    shape = tail if spec.axis == "text" else (n, *tail)
                    if text not in known:
                        known[text] = make_rows(shape, spec.dtype, rng)
                        if array == SPAN.name and whole_span:
                            known[text][:] = True
                    rows = known[text]
                    draft.append(array, rows[None] if spec.axis == "text" else rows)
            writer.commit(draft.seal())


def draft_of(
    writer: StoreWriter, number: int, arrays: Sequence[str], provenance: Mapping[str, str]
) -> SegmentDraft:
    """A draft of some cells of a segment in this process."""
    return SegmentDraft(writer.store, writer.assign(number, arrays), provenance)


def new_store(
    home: Path,
    *,
    codec: Codec = "none",
    axes: Axes = AXES,
    identity: StoreIdentity = IDENTITY,
) -> SmallStore:
    """An empty store."""
    backbone = {"source": "somewhere"}
    store = FeatureStore.create_or_open(home, identity, SIZES, backbone, axes=axes, codec=codec)
    return SmallStore(store)


def filled_store(
    home: Path,
    n_texts: int = 20,
    *,
    codec: Codec = "none",
    dtype: str = "float16",
    arrays: Sequence[str] = ARRAYS,
    whole_span: bool = False,
) -> SmallStore:
    """A store of several segments."""
    identity = IDENTITY.model_copy(update={"storage_dtype": dtype})
    small = new_store(home, codec=codec, identity=identity)
    lengths = np.random.default_rng(7).integers(1, 33, n_texts).tolist()
    texts = [f"text {i}" for i in range(n_texts)]
    small.add(texts, lengths, arrays, whole_span=whole_span)
    return small


def snapshot(folder: Path, *, besides: Sequence[Path] = ()) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of every file below `folder`."""
    return {
        p.relative_to(folder).as_posix(): (p.stat().st_mtime_ns, p.read_bytes())
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p not in besides
    }


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    """Change one byte of a file; a negative position counts from the end."""
    with path.open("r+b") as file:  # in place: a mapped file must not shrink
        position = at % path.stat().st_size
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))
