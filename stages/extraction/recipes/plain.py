"""The text as it is."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from stages.extraction.recipes.base import BaseRecipe
from stages.extraction.recipes.encoded import Encoded
from stages.extraction.recipes.packing import TextInput, between, pack
from stages.extraction.recipes.tokenising import require_own_tokens, tokenise
from storage.errors import InputError


class PlainRecipe(BaseRecipe):
    """The text as it is, with the special tokens that the tokenizer adds by itself."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"normalise", "bos"})

    kind: Literal["plain"] = "plain"
    specials: Literal["include", "exclude"] = "include"
    """Whether added special tokens are in the span, as sentence-transformers and the papers have it."""
    bos: Literal["tokenizer", "omit"] = "tokenizer"
    """`omit` leaves out the special token that the tokenizer puts first ([CLS] in an encoder): its states
    are often many times larger than all others and then decide a mean."""

    def encoded(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> Encoded:
        """Cuts tokens of a text that is too long, as transformers' own truncation on the right does."""
        encodings = tokenise(tokenizer, texts)
        return pack(
            [
                self._input(i, text, encoding, max_length)
                for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True))
            ]
        )

    def _input(self, i: int, text: str, encoding: Encoding, max_length: int) -> TextInput:
        ids, special = encoding.ids, encoding.special_tokens_mask
        if self.bos == "omit" and special[:1] == [1]:
            ids, special = ids[1:], special[1:]
        own = [j for j, is_special in enumerate(special) if not is_special]
        require_own_tokens(i, text, len(own))
        start, end = own[0], own[-1] + 1
        excess = max(len(ids) - max_length, 0)
        if excess and end - excess <= start:
            raise InputError(
                f"max_length is {max_length}, but text {i} gets {len(ids) - (end - start)} special tokens, "
                f"which leaves no room for the text; use a larger max_length"
            )
        kept = end - excess
        ids = ids[:kept] + ids[end:]
        is_all = self.specials == "include"
        span = np.ones(len(ids), dtype=np.bool_) if is_all else between(start, kept, len(ids))
        return TextInput(np.asarray(ids), span, start, kept, excess > 0)
