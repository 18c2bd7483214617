"""LoRA: two narrow matrices beside each linear layer, of which the second starts at zero.

Source: Hu et al., LoRA (2021), as peft makes it; the defaults are GT2VEC's (section 4.1.3). We differ in what
is drawn, which comes from generators of the fit's own, and in dropout: that of the adapters is on in
training, the backbone's own is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from permafrost.stages.bounds import MAX_WIDTH
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.finetune.tuning import Tuning
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from permafrost.stages.extraction.families import Family, HasModel
    from permafrost.stages.finetune.tuned import Tuned


class Lora(Tuning):
    """Adapters on the linear layers of every block, by peft; the weights of the backbone stay as they are.

    A backbone in half precision gets adapters in float32.
    """

    kind: Literal["lora"] = "lora"
    r: int = Field(default=8, ge=1, le=MAX_WIDTH)
    """Rank."""
    alpha: int = Field(default=16, ge=1, le=MAX_WIDTH)
    """What an adapter adds is multiplied by alpha / r."""
    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Of an adapter's input, in training."""
    targets: Literal["attention", "feed_forward", "both", "without_keys", "attention_and_norms"] = (
        "both"
    )
    """The layers that get adapters, by their role: queries, keys, values and the attention's output; gate,
    up and down. A layer that is fused, such as GPT-2's `c_attn`, gets one for all of it. `without_keys`: both
    but for the keys; `attention_and_norms`: attention, with its norms trained whole (Value Aggregation,
    section 7)."""

    @property
    def changes_states(self) -> bool:
        """Of every text."""
        return True

    def layers(self, family: Family) -> tuple[str, ...]:
        """Paths of the layers that get adapters, from a block."""
        attention, feed_forward = family.attention_layers, family.feed_forward_layers
        both = attention + feed_forward
        return {
            "attention": attention,
            "feed_forward": feed_forward,
            "both": both,
            "without_keys": tuple(layer for layer in both if layer != family.keys),
            "attention_and_norms": attention,
        }[self.targets]

    def norms(self, family: Family) -> tuple[str, ...]:
        """Paths of the norms that are trained whole, from a block."""
        return family.attention_norms if self.targets == "attention_and_norms" else ()

    def require(self, sizes: BackboneSizes) -> None:
        """Raises: InputError: the keys cannot be left out."""
        if self.targets != "without_keys":
            return
        from permafrost.stages.extraction.families import FAMILIES

        family = FAMILIES[sizes.model_type]
        if family.keys is None:
            raise InputError(
                f"train.targets is without_keys, but a {quoted(sizes.model_type)} backbone computes queries, "
                f"keys and values in one layer, {family.attention_layers[0]}; use targets: both, which "
                "adapts the keys too"
            )

    def attach(self, backbone: HasModel, draw: torch.Generator) -> Tuned:
        """Put adapters into the backbone; its outputs are, until they are trained, what they were."""
        from permafrost.stages.finetune.adapters import Adapters

        return Adapters(self, backbone, draw)

    def load(self, folder: Path) -> Mapping[str, Tensor]:
        """By peft's names."""
        from safetensors.torch import load_file

        from permafrost.stages.finetune.adapters import WEIGHTS

        return load_file(folder / WEIGHTS)
