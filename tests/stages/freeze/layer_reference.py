"""The autoencoders of single layers written with torch's own modules, weights copied from stacked ones."""

import torch
from torch import nn


def _filled(modules, parameters, row):
    """torch's modules with row `row` of stacked parameters, in order."""
    for module in modules:
        if isinstance(module, nn.Linear):
            module.weight.data = next(parameters).detach()[row].t().clone()
            module.bias.data = next(parameters).detach()[row, 0].clone()
        elif isinstance(module, nn.LayerNorm):
            module.weight.data = next(parameters).detach()[row, 0].clone()
            module.bias.data = next(parameters).detach()[row, 0].clone()
    assert next(parameters, None) is None
    return nn.Sequential(*modules)


def single_autoencoders(model):
    """(encoder, decoder) of every layer of a LayerAutoencoders, without dropout."""
    d, made = model.encoders.d_model, []
    groups = zip(
        model.encoders.groups.sizes,
        model.encoders.widths,
        model.encoders.groups.networks,
        model.decoders.networks,
        strict=True,
    )
    for size, width, encoder, decoder in groups:
        middle = (d + width) // 2
        for row in range(size):
            encode = [
                nn.Linear(d, middle),
                nn.LayerNorm(middle),
                nn.GELU(),
                nn.Linear(middle, width),
                nn.LayerNorm(width),
                nn.GELU(),
            ]
            decode = [
                nn.Linear(width, middle),
                nn.LayerNorm(middle),
                nn.GELU(),
                nn.Linear(middle, d),
            ]
            made.append(
                (
                    _filled(encode, iter(encoder.parameters()), row),
                    _filled(decode, iter(decoder.parameters()), row),
                )
            )
    return made


def one_siamese_encoder(encoders, layer):
    """The encoder of one layer of siamese encoders."""
    network = encoders.groups.networks[0]
    d, c = encoders.d_model, encoders.widths[0]
    modules = [
        nn.Linear(d, c),
        nn.LayerNorm(c),
        nn.GELU(),
        nn.Linear(c, c),
        nn.GELU(),
        nn.Linear(c, c),
    ]
    return _filled(modules, iter(network.parameters()), layer)


def generator(seed=0):
    """A fresh generator."""
    return torch.Generator().manual_seed(seed)
