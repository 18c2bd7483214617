"""Of which texts the bound of HTP is computed, and after which blocks."""

from typing import Annotated

from pydantic import Field, PositiveInt

from permafrost.stages.bounds import MAX_LAYERS
from permafrost.stages.corpus.text_sample import TextSample
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError

PRE_NORM = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
"""Architectures of the form that the theory is about: a norm before the attention, a norm before the
feed-forward layers, and both added to the residual stream, one after the other."""


class PathBoundConfig(TextSample):
    """Of which texts, and after which blocks."""

    n_texts: int = Field(default=4, ge=1, le=1000)
    """Maximum number; each takes d_model passes, forwards and backwards."""
    max_tokens: PositiveInt = 32
    """Longer inputs are cut: what is computed has max_tokens * d_model^2 numbers."""
    blocks: tuple[Annotated[int, Field(ge=1, le=MAX_LAYERS)], ...] | None = Field(
        default=None, min_length=1
    )
    """After which blocks vectors are read; after all and after the final norm if not given."""

    def read_blocks(self, sizes: BackboneSizes) -> tuple[int, ...]:
        """The blocks of a backbone of these sizes, ascending.

        Raises:
            InputError: a block that it does not have, or an architecture of another form.
        """
        if sizes.model_type not in PRE_NORM:
            raise InputError(
                f"the bound is for blocks with a norm before each of their two parts, which a "
                f"{sizes.model_type} backbone does not have; use one of {', '.join(PRE_NORM)}"
            )
        every = tuple(range(1, sizes.n_layers + 1))
        chosen = every if self.blocks is None else tuple(sorted(set(self.blocks)))
        if chosen[-1] > sizes.n_layers:
            raise InputError(
                f"blocks has {chosen[-1]}, but this {sizes.model_type} backbone has blocks 1 to "
                f"{sizes.n_layers}"
            )
        return chosen
