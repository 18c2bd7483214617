"""The module of the head `adapool`; see there for its source.

Axes: t tokens of all texts, n texts, b texts of a block, l length of its longest, d input width, h
attention heads, k width of an attention head.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from permafrost.stages.heads.adapool import AdaPoolHead, head_width
from permafrost.stages.heads.graph.token_graph import MASKED, PAIRS
from permafrost.stages.heads.initialise import projection
from permafrost.stages.heads.layout import lay_out
from permafrost.stages.heads.plain_poolings import MeanPooling
from permafrost.stages.heads.pooling import Pooling


class AdaPooling(Pooling):
    """z = W_o concat_h sum_t alpha_ht W_v,h x_t, alpha_h = softmax over t of
    (W_q,h q) . (W_k,h x_t) / sqrt(h k), plus q where q is a token; sqrt(k) with `scale="head"`.

    Has 4 d h k parameters. Keys and values of tokens are never computed: W_k,h is applied to the query, and
    W_v,h after the sum, which takes 2 h d multiplications per token instead of 2 d h k. Memory: one padded
    copy of the tokens, 2 h numbers per token, 2 h d per text.
    """

    def __init__(self, config: AdaPoolHead, d_in: int, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.d_out = d_in
        self.d_head = head_width(config, d_in)
        width = config.heads * self.d_head
        self.root = math.sqrt(width if config.scale == "width" else self.d_head)
        """Divisor of the scores."""
        self.query = projection(d_in, width, generator)
        self.key = projection(d_in, width, generator)
        self.value = projection(d_in, width, generator)
        self.out = projection(width, d_in, generator)
        self.mean = MeanPooling(d_in)

    def _queries(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        """q of each text, `[n, d]`."""
        match self.config.query:
            case "mean":
                return self.mean(tokens, offsets)
            case "first":
                return tokens[offsets[:-1]]
            case "last":
                return tokens[offsets[1:] - 1]

    def _attend(self, tokens: Tensor, offsets: Tensor, queries_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sums of each text's tokens, `[n, h, d]`, and the weights, `[t, h]`."""
        heads, width = self.config.heads, tokens.shape[1]
        query_NHK = self.query(queries_ND).view(-1, heads, self.d_head) / self.root
        key_HKD = self.key.weight.view(heads, self.d_head, width)
        query_NHD = torch.einsum("nhk,hkd->nhd", query_NHK, key_HKD)
        sums, weights, texts, slots = [], [], [], []
        for layout in lay_out(offsets, PAIRS[tokens.device.type]):
            rows_BLD = tokens.index_select(0, layout.source).view(*layout.shape, width)
            scores_BHL = query_NHD.index_select(0, layout.texts) @ rows_BLD.transpose(1, 2)
            if layout.padding is not None:
                scores_BHL = scores_BHL.masked_fill(layout.padding[:, None], MASKED)
            alpha_BHL = scores_BHL.softmax(dim=-1)
            sums.append(alpha_BHL @ rows_BLD)
            weights.append(alpha_BHL.transpose(1, 2).reshape(-1, heads))
            texts.append(layout.texts)
            slots.append(layout.target(len(tokens)))
        every = tokens.new_empty(len(tokens) + 1, heads)
        every = every.index_copy(0, torch.cat(slots), torch.cat(weights))
        return torch.cat(sums)[torch.cat(texts).argsort()], every[: len(tokens)]

    def forward(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, "n d_out"]:
        """One vector per text."""
        queries_ND = self._queries(tokens, offsets)
        sums_NHD, _ = self._attend(tokens, offsets, queries_ND)
        value_HKD = self.value.weight.view(self.config.heads, self.d_head, -1)
        output_NHK = torch.einsum("nhd,hkd->nhk", sums_NHD, value_HKD)
        output_ND = self.out(output_NHK.flatten(1))
        return output_ND if self.config.query == "mean" else queries_ND + output_ND

    def token_weights(
        self, tokens: Float[Tensor, "t d"], offsets: Int[Tensor, " n_plus_1"]
    ) -> Float[Tensor, " t"]:
        """The softmax weights, averaged over attention heads."""
        return self._attend(tokens, offsets, self._queries(tokens, offsets))[1].mean(dim=1)
