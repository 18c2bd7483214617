"""Self-attention whose logits get a bias by relative position, run by our attention function.

transformers' MPNet multiplies and softmaxes inside its own attention module and calls no attention function.
So the module is replaced by this one, which has its layers under the same names: weights, adapters and saved
files are those of the original.
Axes: B texts, H heads, T positions, D width of the states.
"""

from typing import Any, cast

import transformers
from jaxtyping import Bool, Float
from torch import Tensor, nn

from permafrost.stages.extraction.attention import observed_attention
from permafrost.stages.extraction.families import Family


class BiasedSelfAttention(nn.Module):
    """In the place of `MPNetSelfAttention`.

    Source: MPNet (arXiv:2004.09297), section 3.1, whose relative positions are those of T5; transformers'
    encoder computes the bias, once for all blocks.
    """

    is_causal = False

    def __init__(self, theirs: nn.Module) -> None:
        """Args: theirs: the module that is replaced; its layers are used as they are."""
        super().__init__()
        self.q, self.k, self.v, self.o = (theirs.get_submodule(name) for name in "qkvo")
        self.dropout = cast(nn.Dropout, theirs.dropout)
        self.d_head = cast(int, theirs.attention_head_size)

    def forward(
        self,
        hidden_states: Float[Tensor, "b t d"],
        attention_mask: Bool[Tensor, "b _ t t"] | None = None,
        position_bias: Float[Tensor, "b h t t"] | None = None,
        **_: Any,
    ) -> tuple[Float[Tensor, "b t d"], None]:
        """The attention's output; there are no weights to return, whatever is asked for."""
        heads = (*hidden_states.shape[:-1], -1, self.d_head)
        query, key, value = (
            layer(hidden_states).view(heads).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        output, _none = observed_attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            position_bias=position_bias,
        )
        return self.o(output.flatten(2)), None


def replace_attention(model: "transformers.PreTrainedModel", family: Family) -> None:
    """Put our module in the place of the one that attends, in every block of a model in evaluation mode."""
    holder, _, name = family.attention.rpartition(".")
    for block in family.block_list(model):
        theirs = block.get_submodule(family.attention)
        ours = BiasedSelfAttention(theirs).train(theirs.training)
        setattr(block.get_submodule(holder), name, ours)
