"""The tokenizer, the texts it can read, and which tokens are the text's own."""

from collections.abc import Iterator, Sequence
from typing import cast

from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_AT_A_TIME = 256
"""Texts given to the tokenizer's threads together."""


def require_readable(texts: Sequence[str]) -> None:
    """Refuse texts that are blank or no valid Unicode.

    Raises:
        InputError: names the text by its place, from 0.
    """
    for i, text in enumerate(texts):
        if not text.strip():
            raise InputError(
                f"text {i} is {quoted(text)}, which has nothing to tokenise; remove empty texts from the "
                "input"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {i} holds half of a surrogate pair (U+{ord(text[error.start]):04X} at character "
                f"{error.start}), which no tokenizer reads; repair or remove it"
            ) from error


def require_own_tokens(i: int, text: str, n_own: int) -> None:
    """Refuse a text of which no token is left.

    Raises:
        InputError: names the text by its place, from 0.
    """
    if n_own < 1:
        raise InputError(
            f"text {i} ({quoted(text)}) gives no token of its own with this tokenizer: only special "
            f"tokens or prompt words are left of it; remove it from the input"
        )


def tokenise(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[Encoding]:
    """Tokens of texts, special ones exactly as the tokenizer adds them by itself.

    Some at a time: an encoding holds about 150 bytes for each token.
    """
    # The Rust tokenizer itself: the same tokens as tokenizer(texts), without its per-call truncation
    # state, which two threads would change under each other's feet.
    rust = cast(Tokenizer, tokenizer.backend_tokenizer)
    for at in range(0, len(texts), _AT_A_TIME):
        yield from rust.encode_batch(list(texts[at : at + _AT_A_TIME]), add_special_tokens=True)


def overlapping(encoding: Encoding, first_char: int, n_chars: int) -> tuple[int, int]:
    """First and one past the last token that overlap these characters; (0, 0) for none.

    One that the text shares with the prompt counts as the text's own.
    """
    own = [
        j
        for j, (start, end) in enumerate(encoding.offsets)
        if start < first_char + n_chars and end > max(first_char, start)
    ]
    return (own[0], own[-1] + 1) if own else (0, 0)
