import copy

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


def shift_normalisation(norm):
    """Give a batch normalisation weights and running statistics that are not those of a fresh one."""
    draw = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for values in (norm.weight, norm.running_var):
            values.uniform_(0.5, 2.0, generator=draw)
        for values in (norm.bias, norm.running_mean):
            values.normal_(generator=draw)


def magnification(conv, tokens, graph):
    """How much larger than before a convolution's rounding may be, relative to its largest number.

    Batch normalisation takes off the mean of a column and divides by its deviation: rounding relative to the
    column's largest number becomes rounding relative to its deviation.
    """
    if not (hasattr(conv, "norm") and conv.training):
        return 1.0
    seen = []
    hook = conv.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    copy.deepcopy(conv)(tokens.detach(), graph)
    hook.remove()
    ratios = [
        float((rows.abs().amax(dim=0) / rows.std(dim=0, correction=0)).max()) for rows in seen
    ]
    return max(ratios, default=1.0)
