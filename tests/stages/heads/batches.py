import numpy as np
import torch


def make_batch(lengths, width, seed=0, dtype=torch.float64, shared=1.0):
    """Random packed tokens with a shared direction, so that cosines spread around 0.5."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randn(sum(lengths), width, generator=draw, dtype=dtype)
    tokens += shared * torch.randn(1, width, generator=draw, dtype=dtype)
    return tokens, torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
