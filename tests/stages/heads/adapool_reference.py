"""Brothers' AdaPool as a formula for one text, with the matrices of its released module as they lie there.

One matrix makes the queries, one the keys above the values, one the output; none has a bias. An attention
head is a run of columns. Scores are divided by the root of the tokens' width, of which all attention heads
have a part. The token that asks is added to the answer, the mean of tokens is not.
"""

from typing import Literal

import torch
from torch import Tensor


def adapool(
    text: Tensor,
    matrices: tuple[Tensor, Tensor, Tensor],
    query: Literal["mean", "first"],
    heads: int,
) -> tuple[Tensor, Tensor]:
    """The vector `[d]` of a text `[n, d]`, and the weights `[heads, n]` of its tokens."""
    asks, keys_over_values, gives = matrices
    asked = text.mean(dim=0) if query == "mean" else text[0]
    keys, values = (text @ keys_over_values.t()).chunk(2, dim=1)
    weights, answers = [], []
    for columns in torch.arange(text.shape[1]).chunk(heads):
        scores = keys[:, columns] @ (asks[columns] @ asked) / text.shape[1] ** 0.5
        weights.append(scores.exp() / scores.exp().sum())
        answers.append(weights[-1] @ values[:, columns])
    answer = gives @ torch.cat(answers)
    return answer + asked if query == "first" else answer, torch.stack(weights)
