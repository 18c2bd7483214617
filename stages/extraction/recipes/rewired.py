"""What recipes with placeholders have in common."""

from typing import Annotated, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_LAYERS, MAX_SEED
from permafrost.stages.extraction.recipes.alterations import Rewiring
from permafrost.stages.extraction.recipes.base import BaseRecipe
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


class RewiredRecipe(BaseRecipe):
    """Placeholders that take over the states of later tokens between blocks; for decoders."""

    start: Annotated[int, Field(le=MAX_LAYERS)] = 1
    """States are copied before the blocks with 0-based index start..stop-1, so that with 1 the first block
    runs on the placeholders' own embeddings."""
    stop: Annotated[int, Field(le=MAX_LAYERS)] | Literal["auto"] = "auto"
    """`auto`: at the depth of the papers' choice for Llama-2-7B, 7 of 32 blocks."""
    placeholder: Literal["mean", "noise"] = "mean"
    """A placeholder's embedding: the mean of all tokens', or N(0, 1)."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    """Of the noise; `mean` does not read it."""

    @property
    def rewiring(self) -> Rewiring:
        """Of a resolved recipe."""
        assert self.stop != "auto", "a recipe has to be resolved for a backbone before it is used"
        return Rewiring(self.start, self.stop, self.placeholder, self.seed)

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """As every recipe, and the last rewired block."""
        if not sizes.is_decoder:
            raise InputError(
                f"the recipe {self.name()} copies a later token's state to an earlier placeholder, but "
                f"{sizes.model_type} is an encoder, where every token sees the whole text anyway; use a "
                f"decoder or another recipe"
            )
        automatic = min(sizes.n_layers, max(self.start + 1, round(7 / 32 * sizes.n_layers)))
        stop = automatic if self.stop == "auto" else self.stop
        if not 0 <= self.start <= stop <= sizes.n_layers:
            raise InputError(
                f"the recipe {self.name()} is rewired from start={self.start} to stop={stop}, but "
                f"0 <= start <= stop <= {sizes.n_layers} has to hold, the number of blocks of the backbone "
                f"({sizes.model_type})"
            )
        return super().definite(sizes) | {"stop": stop}
