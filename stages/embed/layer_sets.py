"""Sets of layers that Value Aggregation prints for its backbones, by name.

Source: Value Aggregation, section 5.1: 20 to 27 of Llama-2-7B's 32 blocks, and 26, 27, 29, 30 and 31 of
Qwen3-8B's 36. Section 4.1 counts blocks from 1, as we do. A reproduction by others takes the same numbers for
modules, which count from 0: those are the sets that end in `-from-0`, one block further.
"""

from collections.abc import Mapping

LAYER_SETS: Mapping[str, str] = {
    "va-llama-2-7b": "20-27",
    "va-llama-2-7b-from-0": "21-28",
    "va-qwen3-8b": "26,27,29-31",
    "va-qwen3-8b-from-0": "27,28,30-32",
}
"""Blocks from 1. A name stands for its blocks in every key, so both spellings share their results."""
