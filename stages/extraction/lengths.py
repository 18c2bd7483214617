"""Lengths of texts under a recipe, and refusing texts that are too long."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from permafrost.stages.extraction.facts import PACKAGES, versions
from permafrost.stages.extraction.recipes.inputs import numbered_as
from permafrost.stages.extraction.recipes.recipe import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.plugins import packages
from permafrost.storage.errors import InputError
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.kept import keep, kept
from permafrost.storage.keys import canonical_json, digest, text_digest
from permafrost.storage.quoting import quoted

_AT_A_TIME = 256
"""Texts that are tokenised together."""
_CHARS_PER_TOKEN = 8
"""Of a text with more characters for each token that is read, the beginning is estimated from: English has
four to five, and where so many do not fill the input, the whole text is tokenised."""
_NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Measured:
    """The fields of `Encoded` that the layout of a segment needs."""

    lengths: Int64[np.ndarray, " n"]
    """Tokens of the input."""
    span_start: Int64[np.ndarray, " n"]
    span_end: Int64[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]


def measure(target: ExtractTarget, texts: Sequence[str]) -> Measured:
    """Tokenise texts, at least one, in groups; keeps their lengths only.

    Raises:
        InputError: a text cannot be used; the message gives its index in `texts`.
    """
    parts: list[Measured] = []
    for at in range(0, len(texts), _AT_A_TIME):
        group = texts[at : at + _AT_A_TIME]
        with numbered_as(range(at, at + len(group))):
            encoded = target.encoded(group)
        parts.append(
            Measured(
                encoded.token_ids.lengths, encoded.span_start, encoded.span_end, encoded.truncated
            )
        )
    columns = zip(*((p.lengths, p.span_start, p.span_end, p.truncated) for p in parts), strict=True)
    return Measured(*(np.concatenate(column) for column in columns))


@dataclass(frozen=True)
class Total:
    """What texts come to as inputs of a backbone."""

    lengths: tuple[int, ...]
    """Tokens of each."""
    exact: bool
    """Whether all tokens were counted."""
    n_cut: int
    """Texts that are longer than `max_length`."""

    @property
    def n_tokens(self) -> int:
        """Of all."""
        return sum(self.lengths)


class KnownLengths:
    """Lengths of texts under recipes, each estimated once: plans ask for texts alone and among others."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[str, tuple[int, bool, bool]]] = {}

    def total(self, target: ExtractTarget, texts: Sequence[str], digests: Sequence[str]) -> Total:
        """Tokens of the inputs of texts, and how many texts are cut.

        Raises:
            InputError: a text cannot be used; the message gives its index in `texts`.
        """
        read_as = _read_as(target)
        known = self._known.setdefault(canonical_json(read_as), {})
        # A tokenizer takes seconds to import; of whatever is not kept, it counts all.
        name = digest([read_as, list(digests)])
        made_from = [name, *versions(), *_counting(target, "estimated")]
        if (found := kept("token_lengths", name, made_from)) is not None:
            return Total(tuple(found[0]), *found[1:])
        new = [i for i, one in enumerate(digests) if one not in known]
        if new:
            with numbered_as(new):
                lengths, is_cut, counted = estimated(target, [texts[i] for i in new])
            found = zip(new, lengths.tolist(), is_cut.tolist(), strict=True)
            known.update({digests[i]: (length, counted, cut) for i, length, cut in found})
        lengths, counted, is_cut = zip(*(known[one] for one in digests), strict=True)
        total = Total(lengths, all(counted), sum(is_cut))
        keep("token_lengths", name, made_from, [lengths, total.exact, total.n_cut])
        return total


@contextmanager
def kept_cuts(
    target: ExtractTarget, name: str
) -> Generator[Callable[[Sequence[str]], Sequence[bool]]]:
    """Gives whether texts lose their end, each counted once: answers are kept by content, as plans ask the
    same again until what they are asked for is published.

    Args:
        target: of the backbone that reads the texts.
        name: of what is asked for: the key of a corpus.
    """
    made_from = [*_read_as(target), *versions(), *_counting(target, "measure")]
    known: dict[str, bool] = kept("cuts", name, made_from) or {}
    n_kept = len(known)

    def are_cut(texts: Sequence[str]) -> Sequence[bool]:
        digests = list(map(text_digest, texts))
        new = {one: i for i, one in enumerate(digests) if one not in known}
        if new:
            with numbered_as(list(new.values())):
                found = measure(target, [texts[i] for i in new.values()]).truncated.tolist()
            known.update(zip(new, found, strict=True))
        return [known[one] for one in digests]

    yield are_cut
    if len(known) > n_kept:
        keep("cuts", name, made_from, known)


def _read_as(target: ExtractTarget) -> list[object]:
    """What decides the tokens of a text. The digest of the weights is that of config.json as well, by which
    transformers chooses the tokenizer's class."""
    identity = target.identity
    digests = [identity.weights_digest, identity.tokenizer_digest]
    return [*digests, identity.recipe, target.max_length]


def _counting(target: ExtractTarget, function: str) -> list[str]:
    """Digests of our code, and a plug-in's, that counts tokens under a recipe."""
    entries = (f"permafrost.stages.extraction.lengths:{function}", type(target.recipe))
    return [fingerprint(entry, (*PACKAGES, *packages())).digest for entry in entries]


def estimated(
    target: ExtractTarget, texts: Sequence[str]
) -> tuple[Int64[np.ndarray, " n"], Bool[np.ndarray, " n"], bool]:
    """Tokens of the inputs of texts, at least one; whether each is cut; and whether all tokens were counted.

    Of a text that is much longer than the input its beginning alone is tokenised, if that is cut as well:
    tokens before a cut hardly depend on what comes long after it.

    Raises:
        InputError: a text cannot be used; the message gives its index in `texts`.
    """
    limit = _CHARS_PER_TOKEN * target.max_length
    long = [i for i, text in enumerate(texts) if len(text) > limit]
    if not long:
        measured = measure(target, texts)
        return measured.lengths, measured.truncated, True
    begun = list(texts)
    for i in long:
        begun[i] = _beginning(texts[i], limit)
    try:
        measured = measure(target, begun)
    except InputError:
        # A beginning may be blank.
        measured = measure(target, texts)
        return measured.lengths, measured.truncated, True
    lengths, is_cut = measured.lengths, measured.truncated
    if whole := [i for i in long if not is_cut[i]]:
        with numbered_as(whole):
            of_whole = measure(target, [texts[i] for i in whole])
        lengths[whole], is_cut[whole] = of_whole.lengths, of_whole.truncated
    return lengths, is_cut, len(whole) == len(long)


def _beginning(text: str, n_chars: int) -> str:
    """At most so many characters, to the end of a word if there is one."""
    end = max(text.rfind(" ", 0, n_chars), text.rfind("\n", 0, n_chars))
    return text[: end if end > 0 else n_chars]


def refuse_too_long(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    digests: Sequence[str],
    block_texts: int,
) -> None:
    """Refuse the run if a text is longer than max_length; writes nothing. Texts not yet stored are tokenised.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        texts: unique texts.
        digests: their content digests, same order.
        block_texts: texts tokenised at a time.

    Raises:
        InputError: a text is longer than max_length, or is stored truncated.
    """
    cut = np.zeros(len(texts), dtype=np.bool_)
    root = store_folder(home, target.identity.store_id)
    store = FeatureStore.open(root, expect=target.identity) if has_record(root) else None
    for at in range(0, len(texts), block_texts):
        block = slice(at, at + block_texts)
        new = np.arange(len(digests[block]))
        if store is not None:
            where = store.locate(digests[block])
            cut[block], new = where.truncated, np.flatnonzero(where.segment < 0)
        if len(new):
            rows = (at + new).tolist()
            with numbered_as(rows):
                cut[rows] = measure(target, [texts[i] for i in rows]).truncated
    if not cut.any():
        return
    first = int(np.argmax(cut))
    whole = encode(target.recipe, target.tokenizer, [texts[first]], _NO_LIMIT)
    raise InputError(
        f"{int(cut.sum()):,} of the {len(texts):,} different texts are longer than max_length, which is "
        f"{target.max_length} tokens; the first is {quoted(texts[first])} with "
        f"{int(whole.token_ids.lengths[0]):,} tokens under this recipe. Nothing was written, as too_long is "
        f"'refuse'; split or leave out such texts, use a larger max_length, or set too_long to 'cut'"
    )
