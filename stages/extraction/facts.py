"""What is known of a backbone before it is loaded, kept by the content of its files.

Reading it takes transformers and torch, whose imports take longer than all else that a plan does.
"""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from permafrost.stages.extraction.files import BackboneConfig, BackboneFiles
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.kept import keep, kept
from permafrost.storage.quoting import quoted

DEFAULT_MAX_LENGTH = 512
"""Default limit in tokens: what most encoders read, and what the papers evaluate with."""
PACKAGES = ("permafrost.stages", "permafrost.storage")
"""Whose code what is kept depends on."""
READ_BY = ("torch", "transformers", "tokenizers")
"""Libraries of which another version may read the same files differently, or refuse them."""


@dataclass(frozen=True)
class BackboneFacts:
    """Of a backbone that is supported, and whose tokenizer loads."""

    sizes: BackboneSizes
    n_special: int
    """Special tokens around one text."""
    stated: Any
    """`model_max_length` of the tokenizer, as it stands there."""


def facts_of(files: BackboneFiles) -> BackboneFacts:
    """Read off the files, or as they were kept; not kept where the files are refused.

    Raises:
        InputError: the architecture, this configuration of it, or the tokenizer is not supported.
    """
    name = f"{files.weights_digest[:32]}-{files.tokenizer_digest[:32]}"
    made_from = [files.weights_digest, files.tokenizer_digest, *versions(), _reading()]
    if (fields := kept("backbones", name, made_from)) is not None:
        sizes = BackboneSizes(**fields["sizes"])
        return BackboneFacts(sizes, fields["n_special"], fields["stated"])
    from permafrost.stages.extraction.backbone import load_tokenizer, read_sizes

    sizes, tokenizer = read_sizes(files), load_tokenizer(files)
    n_special = tokenizer.num_special_tokens_to_add(pair=False)
    stated: Any = tokenizer.model_max_length
    keep(
        "backbones",
        name,
        made_from,
        {"sizes": sizes.model_dump(), "n_special": n_special, "stated": stated},
    )
    return BackboneFacts(sizes, n_special, stated)


@cache
def versions() -> tuple[str, ...]:
    """Versions of the libraries that read a backbone's files: looked up once, which takes milliseconds, as a
    plan asks for every corpus."""
    return tuple(version(name) for name in READ_BY)


def _reading() -> str:
    """Digest of our code that reads the files and checks them."""
    entries = (
        "permafrost.stages.extraction.backbone:read_sizes",
        "permafrost.stages.extraction.backbone:load_tokenizer",
    )
    return " ".join(fingerprint(entry, PACKAGES).digest for entry in entries)


def max_length_of(config: BackboneConfig, facts: BackboneFacts) -> int:
    """The maximum number of tokens per input, special tokens included.

    If the config sets none: the smallest of the backbone's number of positions, its tokenizer's
    `model_max_length`, and 512. (all-MiniLM-L6-v2 gets 512; sentence-transformers truncates it at 256.)

    Raises:
        InputError: `max_length` is more than the backbone can read, or leaves no room for text.
    """
    n_special, stated, longest = facts.n_special, facts.stated, facts.sizes.max_positions
    if config.max_length is None:
        if not isinstance(stated, int | float) or stated <= n_special:
            raise InputError(
                f"the tokenizer of {quoted(config.source)} states model_max_length {quoted(stated)} in "
                f"tokenizer_config.json, which leaves no room for text; repair it, or give max_length"
            )
        return min(longest, int(min(stated, DEFAULT_MAX_LENGTH)))
    if not n_special < config.max_length <= longest:
        raise InputError(
            f"max_length is {config.max_length}, but the backbone {quoted(config.source)} reads "
            f"{n_special + 1} to {longest} tokens ({n_special} of them special); choose a length in between"
        )
    return config.max_length
