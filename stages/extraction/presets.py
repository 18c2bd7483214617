"""Settings that HTP prints by backbone: where rewiring stops, and which block is read.

Source: HTP, table 9, for its three backbones; blocks are counted as in the released code. What table 9
calls layers 1 to 7 (1 to 6) is [1, 7) of 0-based blocks there, and `third to last` of 32 blocks is block 30,
from 1. Table 9 alone prints Qwen2.5; table 1 and section 5.1 have Qwen2-1.5B-Instruct, which is meant here.
"""

from dataclasses import dataclass

from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


@dataclass(frozen=True)
class HtpSettings:
    """What table 9 says of one backbone."""

    backbone: str
    stop: int
    """One past the last rewired block, from 0; rewiring starts at 1 on all of them."""
    layer: int
    """The block whose output is read, from 1."""


_TABLE_9 = {
    ("mistral", 32): HtpSettings("Mistral-7B-Instruct-v0.3", stop=7, layer=30),
    ("gemma2", 42): HtpSettings("Gemma-2-9b", stop=6, layer=41),
    ("qwen2", 28): HtpSettings("Qwen2-1.5B-Instruct", stop=7, layer=27),
}


def htp_settings(sizes: BackboneSizes) -> HtpSettings:
    """What table 9 of HTP says of a backbone of this architecture and depth.

    Raises:
        InputError: it says nothing of such a backbone.
    """
    found = _TABLE_9.get((sizes.model_type, sizes.n_layers))
    if found is None:
        known = ", ".join(f"{s.backbone} ({kind}, {n} blocks)" for (kind, n), s in _TABLE_9.items())
        raise InputError(
            f"'htp' stands for the settings that table 9 of HTP prints for {known}, but this backbone is "
            f"{sizes.model_type} with {sizes.n_layers} blocks; give numbers, counted from the end if need "
            "be (layers: -2)"
        )
    return found
