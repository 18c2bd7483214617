"""A text cut in two at a token that a seed draws.

Source: Value Aggregation, section 3.2: the split point is uniform over the token positions from 1/4 to 3/4 of
a text of 2,000 tokens of LongBench v2, and the two parts are encoded separately.
"""

import hashlib
from functools import cache
from math import ceil, floor
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from tokenizers import Tokenizer

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.corpus.table_files import file_sha256
from permafrost.storage.errors import InputError
from permafrost.storage.file_marks import marks_of
from permafrost.storage.paths import checked_path

_FILE = "tokenizer.json"


class TokenCut(BaseModel):
    """Where texts are cut, in tokens of one tokenizer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str
    """Folder with a tokenizer.json, the backbone's own for example. Its content enters the key, not its
    name."""
    n_tokens: int = Field(default=2000, ge=2, le=MAX_TEXTS)
    """What follows these tokens is dropped before a text is cut."""
    lowest: float = Field(default=0.25, ge=0, le=1)
    """Share of the tokens that the first part has at least."""
    highest: float = Field(default=0.75, ge=0, le=1)
    """Share of the tokens that the first part has at most."""

    @model_validator(mode="after")
    def _has_a_range(self) -> "TokenCut":
        if self.highest < self.lowest:
            raise ValueError(f"lowest is {self.lowest:g}, but highest is {self.highest:g}")
        return self

    @property
    def file(self) -> Path:
        """Raises: InputError: the folder has no tokenizer.json."""
        path = checked_path(self.tokenizer, "the tokenizer") / _FILE
        if not path.is_file():
            raise InputError(
                f"{self.tokenizer} has no {_FILE}; name a folder with the tokenizer's files"
            )
        return path

    def facts(self) -> dict[str, object]:
        """All fields, but the digest of the tokenizer instead of its folder."""
        return {**self.model_dump(exclude={"tokenizer"}), "tokenizer": file_sha256(self.file)}

    def halves(self, text: str, seed: int) -> tuple[str, str]:
        """The two parts without white space around them; one is empty if there are too few tokens.

        The position is uniform over those from `lowest` to `highest` of the text's tokens, at least one on
        both sides, and depends on the seed and the text alone. A token may begin inside a word: so does the
        second part then, whose own tokens can differ there.
        """
        encoding = _loaded(path := self.file, marks_of(path.stat())).encode(
            text, add_special_tokens=False
        )
        places = encoding.offsets[: self.n_tokens]
        first, last = ceil(self.lowest * len(places)), floor(self.highest * len(places))
        first, last = max(first, 1), min(last, len(places) - 1)
        if last < first:
            return text, ""
        digest = hashlib.sha256(f"cut:{seed}:{text}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
        at = places[int(rng.integers(first, last + 1))][0]
        return text[:at].strip(), text[at : places[-1][1]].strip()


@cache
def _loaded(path: Path, marks: tuple[int, ...]) -> Tokenizer:
    """The marks are there so that a changed file is read again."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return tokenizer
