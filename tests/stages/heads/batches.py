import numpy as np
import torch


def make_batch(lengths, width, seed=0, dtype=torch.float64, shared=1.0):
    """Random packed tokens with a shared direction, so that cosines spread around 0.5."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randn(sum(lengths), width, generator=draw, dtype=dtype)
    tokens += shared * torch.randn(1, width, generator=draw, dtype=dtype)
    return tokens, torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def passes_gradcheck(conv, tokens, graph):
    """Whether the gradients of tokens and of every parameter are those of finite differences."""
    names = [name for name, _ in conv.named_parameters()]

    def apply(x, *values):
        return torch.func.functional_call(conv, dict(zip(names, values, strict=True)), (x, graph))

    return torch.autograd.gradcheck(apply, (tokens.requires_grad_(), *conv.parameters()))
