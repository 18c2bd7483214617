"""Contrastive prompting: attention output under a second prompt is subtracted from that under the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field, field_validator

from permafrost.stages.bounds import MAX_LAYERS
from permafrost.stages.extraction.recipes.inputs import (
    TEXT,
    Encoded,
    fill,
    pack,
    require_slots,
    words_around,
)
from permafrost.stages.extraction.recipes.prompts import QUOTED, PromptRecipe
from permafrost.stages.extraction.recipes.recipe import Intervention
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import transformers


class ContrastiveRecipe(PromptRecipe):
    """Contrastive prompting (CP): the last token's attention output minus that under another prompt."""

    kind: Literal["contrastive"] = "contrastive"
    template: str = QUOTED
    """The prompt, with `{text}`."""
    auxiliary: str = 'The irrelevant information of this sentence : "{text}" means in one word:"'
    """Template of the prompt whose attention output is subtracted."""
    block: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | Literal["auto"] = "auto"
    """1-based block where this happens. `auto`: at the depth of the paper's choice for Llama-2-7B, the 5th
    of 32 blocks."""
    mode: Literal["scaled", "norm"] = "scaled"
    """The difference times `coefficient`, or rescaled to the norm of the first prompt's output."""
    coefficient: float = Field(default=0.5, allow_inf_nan=False)
    """Unused by `norm`."""

    @field_validator("auxiliary")
    @classmethod
    def _auxiliary_has_one_slot(cls, auxiliary: str) -> str:
        return require_slots(auxiliary, TEXT)

    @property
    def intervention(self) -> Intervention:
        """The intervention of a resolved recipe."""
        assert self.block != "auto", "a recipe has to be resolved for a backbone before it is used"
        return Intervention(self.block, self.mode, self.coefficient)

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """As for every recipe, and the block."""
        if not sizes.is_decoder:
            raise InputError(
                f"the recipe contrastive changes what the last token of a decoder attends to, but "
                f"{sizes.model_type} is an encoder, whose sentence vector is not read there; use a "
                f"decoder or another recipe"
            )
        automatic = max(1, round(5 / 32 * sizes.n_layers))
        block = automatic if self.block == "auto" else self.block
        if block > sizes.n_layers:
            raise InputError(
                f"the recipe contrastive changes block {block}, but the backbone ({sizes.model_type}) has "
                f"the blocks 1..{sizes.n_layers}; set block to one of them or to auto"
            )
        return super().definite(sizes) | {"block": block}

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Both prompts get the same text, cut to fit the one that leaves less room."""
        prompts = [words_around(self.instructed(t), TEXT) for t in (self.auxiliary, self.template)]
        kept = list(texts)
        while True:
            pair = []
            before = kept
            for words in prompts:
                pair.append(fill(words, tokenizer, kept, max_length))
                kept = [x.text for x in pair[-1]]
            if kept == before:
                break
        cut = np.asarray([a != b for a, b in zip(kept, texts, strict=True)], dtype=np.bool_)
        auxiliary, main = (
            replace(pack([x.as_input() for x in filled]), truncated=cut) for filled in pair
        )
        return replace(main, auxiliary=auxiliary)
