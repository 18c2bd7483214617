"""Tokens as readable text, and the kind of each, for WordPiece, byte-level BPE and SentencePiece.

The kind of a token is the first that applies:

- `special`: a special token of the tokenizer, including the one for unknown words, or a placeholder.
- `punctuation`: has no letter, mark or digit (Unicode categories L, M and N): punctuation, symbols, space.
- `continuation`: follows a token of a word without a space.
- `word`: every other token: the first of a word, or all of it.

A fragment of a character (byte-level BPE) counts as part of a word.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64

from permafrost.stages.metrics.records import TOKEN_WEIGHTS, WEIGHTED_TEXTS
from permafrost.stages.report.cells import CellResult
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.quoting import quoted

TokenKind = Literal["special", "punctuation", "word", "continuation"]
Notation = Literal["bytes", "sentencepiece", "wordpiece"]
"""How a tokenizer writes what its tokens stand for."""
KINDS: tuple[TokenKind, ...] = get_args(TokenKind)


@dataclass(frozen=True)
class Token:
    """One token in its tokenizer's notation."""

    text: str
    is_special: bool = False


TextTokens = Callable[[Sequence[str]], Mapping[str, Sequence[Token]]]
"""Gives the tokens of texts by digest, one per weight; texts whose tokens are not known are left out."""


@dataclass(frozen=True)
class ReadToken:
    """One token as readable text."""

    text: str
    glued: bool
    """Whether it follows the previous token without a space."""
    kind: TokenKind


Reading = Mapping[str, tuple[ReadToken, ...]]
"""Tokens of texts, by digest."""


@dataclass(frozen=True)
class TextWeights:
    """The token weights of one text, which sum to 1."""

    digest: str
    weights: Float64[np.ndarray, " n_tokens"]


@dataclass(frozen=True)
class CellWeights:
    """The token weights of a method with one seed on a task."""

    method: str
    task: str
    seed: int
    folder: Path
    """Folder of the score."""
    texts: Mapping[int, TextWeights]
    """Weights by the text's index in the corpus."""


def notation_of(tokens: Iterable[Token]) -> Notation:
    """The notation of a tokenizer, by its tokens of many texts: those of a text of one word, or of a language
    without spaces, may lack what it is told by."""
    texts = [token.text for token in tokens if not token.is_special]
    if any("Ġ" in text for text in texts):
        return "bytes"
    if any("▁" in text for text in texts):
        return "sentencepiece"
    if any(text.startswith("##") for text in texts):
        return "wordpiece"
    # Letters beyond ASCII that are those of the alphabet of bytes, and together are UTF-8.
    whole = "".join(texts)
    if whole.isascii() or not all(c in _BYTE_OF for c in whole):
        return "wordpiece"
    return "wordpiece" if "\N{REPLACEMENT CHARACTER}" in _from_bytes(whole) else "bytes"


def readable(tokens: Sequence[Token], notation: Notation) -> tuple[ReadToken, ...]:
    """The tokens of one text, with their kinds."""
    read: list[ReadToken] = []
    texts = _texts([t.text for t in tokens], notation)
    for token, (text, is_joined) in zip(tokens, texts, strict=True):
        before = read[-1].kind if read else "special"
        glued = is_joined and before != "special" and not token.is_special
        if token.is_special:
            kind = "special"
        elif _is_punctuation(text):
            kind = "punctuation"
        elif glued and before in ("word", "continuation"):
            kind = "continuation"
        else:
            kind = "word"
        read.append(ReadToken(token.text if token.is_special else text, glued, kind))
    return tuple(read)


def _is_punctuation(text: str) -> bool:
    return not any(
        c == "\N{REPLACEMENT CHARACTER}" or unicodedata.category(c)[0] in "LMN" for c in text
    )


def _texts(tokens: Sequence[str], notation: Notation) -> list[tuple[str, bool]]:
    """Text of each token, and whether it follows the previous one without a space."""
    if notation == "bytes":
        return [(_from_bytes(t.removeprefix("Ġ")), t[:1] != "Ġ") for t in tokens]
    if notation == "sentencepiece":
        return [(t.replace("▁", " ").strip() or "␣", t[:1] != "▁") for t in tokens]
    return [(t.removeprefix("##"), t.startswith("##")) for t in tokens]


def _from_bytes(token: str) -> str:
    """Undo the printable alphabet of byte-level BPE; a token may be a fragment of a character."""
    if not all(c in _BYTE_OF for c in token):
        return token
    text = bytes(_BYTE_OF[c] for c in token).decode("utf-8", errors="replace")
    return text.replace("\n", "↵") or "␣"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others for 256, 257, ..."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def read_weights(
    results: Sequence[CellResult], file: str = TOKEN_WEIGHTS
) -> tuple[CellWeights, ...]:
    """The weights of every method that has any, in the order of the cells: on texts of test, or those in
    another file of a score, as `CHOSEN_WEIGHTS`.

    Raises:
        CorruptDataError: a file lacks a column or cannot be read.
    """
    return tuple(
        CellWeights(r.cell.method, r.cell.task, r.cell.seed, r.cell.folder, texts)
        for r in results
        if r.cell.role == "method"
        and (path := r.cell.folder / file).exists()
        and (texts := _text_weights(path))
    )


def read_tokens(weights: Sequence[CellWeights], tokens: TextTokens) -> Reading:
    """The tokens of all texts that have weights, as far as they are known.

    Raises:
        CorruptDataError: a text has a different number of tokens than of weights.
    """
    digests = dict.fromkeys(text.digest for cell in weights for text in cell.texts.values())
    found = tokens(list(digests))
    notation = notation_of(token for of_text in found.values() for token in of_text)
    tokens_of = {d: readable(of_text, notation) for d, of_text in found.items()}
    for cell in weights:
        for text in cell.texts.values():
            read = tokens_of.get(text.digest)
            if read is not None and len(read) != len(text.weights):
                raise CorruptDataError(
                    f"text {text.digest[:12]} has {len(text.weights)} weights under {quoted(cell.method)} "
                    f"but {len(read)} tokens; they were made from different features, so score it again"
                )
    return tokens_of


def _text_weights(path: Path) -> dict[int, TextWeights]:
    try:
        rows = pq.read_table(path, columns=WEIGHTED_TEXTS.names).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise CorruptDataError(
            f"{path} cannot be read with the columns {WEIGHTED_TEXTS.names}: {error}; score it again"
        ) from error
    return {
        row["text"]: TextWeights(row["digest"], np.asarray(row["weights"], np.float64))
        for row in rows
    }


_BYTE_OF = _byte_alphabet()
