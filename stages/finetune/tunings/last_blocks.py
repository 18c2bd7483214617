"""The last blocks of the backbone are trained, those below stay frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.finetune.tuning import OwnWeightsTuning
from permafrost.storage.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from permafrost.stages.extraction.families import HasModel
    from permafrost.stages.finetune.tuned import Tuned


class LastBlocks(OwnWeightsTuning):
    """The weights of the last `n` blocks, and of the final norm if there is one."""

    kind: Literal["last_blocks"] = "last_blocks"
    n: int = Field(default=2, ge=1, le=MAX_STEPS)
    """Number of blocks that are trained."""
    below: Literal["live", "cached"] = "live"
    """`cached`: what enters the first of these blocks is read from the feature store, and no block below
    runs. Scores are those of `live` to the rounding of the store; set the experiment's `store_dtype:
    float32` where float16 is too coarse."""

    @property
    def n_above_cache(self) -> int | None:
        """As `below` says."""
        return self.n if self.below == "cached" else None

    def require(self, sizes: BackboneSizes) -> None:
        """Raises: InputError: the backbone has fewer blocks."""
        if self.n > sizes.n_layers:
            raise InputError(
                f"train says last_blocks with n {self.n}, but the backbone has {sizes.n_layers} blocks; use "
                "fewer, or kind full"
            )

    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned:
        """The parameters of these blocks have a gradient from now on; nothing is drawn."""
        from permafrost.stages.finetune.own_weights import OwnWeights

        model, family = backbone.model, backbone.family
        modules: list[nn.Module] = list(family.block_list(model)[-self.n :])
        if family.has_final_norm(model.config) and (norm := family.norm_module(model)) is not None:
            modules.append(norm)
        chosen = {id(p) for module in modules for p in module.parameters()}
        return OwnWeights({n: p for n, p in model.named_parameters() if id(p) in chosen})
