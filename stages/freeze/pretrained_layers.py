"""Which of the layers that a head reads pretrained encoders are for."""

from collections.abc import Sequence

from permafrost.stages.extraction.capture import Index
from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig, PairFitConfig
from permafrost.stages.freeze.layers_head import LAYERS_HEADS, AutoencodedHead
from permafrost.storage.errors import InputError


def places_of(layers: Sequence[Index], pretrained: Sequence[Index]) -> tuple[int, ...]:
    """Where the layers that a head reads stand, from 0, among those that have a pretrained encoder.

    Raises:
        InputError: one has none.
    """
    if missing := [layer for layer in layers if layer not in pretrained]:
        raise InputError(
            f"the head reads layer {missing[0]}, for which there is no pretrained encoder (there are those "
            f"of {', '.join(map(str, pretrained))}); pretrain on all layers that heads read"
        )
    return tuple(pretrained.index(layer) for layer in layers)


def require_encoders(
    config: PairFitConfig,
    layers: Sequence[Index],
    pretrained: AutoencoderConfig | ClassifierConfig,
    pretrained_layers: Sequence[Index],
) -> None:
    """Check that a head can start from pretrained encoders, those of the layers that it reads.

    Args:
        config: the head, to be trained.
        layers: whose latents the head reads.
        pretrained: how the encoders were pretrained.
        pretrained_layers: layers that have a pretrained encoder.

    Raises:
        InputError: the head has no autoencoder encoders; sizes, activations or the scale of latents differ;
            or a layer has no pretrained encoder.
    """
    head = config.head
    if (sizes := head.encoder_sizes) is None:
        others = [n for n, k in LAYERS_HEADS.kinds().items() if issubclass(k, AutoencodedHead)]
        raise InputError(
            f"the head {head.kind} cannot start from pretrained encoders; leave 'encoders' out, or use "
            f"{', '.join(others[:-1])} or {others[-1]}"
        )
    if config.scale != pretrained.scale:
        raise InputError(
            f"the head reads latents with scale {config.scale}, but the encoders were pretrained on those "
            f"with scale {pretrained.scale}; give both the same"
        )
    width = head.join_width
    if pretrained.joined is not None and width not in (None, pretrained.joined):
        raise InputError(
            f"the head {head.kind} has embeddings of {width} numbers, but the pretrained decoders read a sum "
            f"of {pretrained.joined}; give both the same"
        )
    places, n = places_of(layers, pretrained_layers), len(pretrained_layers)
    if pretrained.joined is not None and len(places) < n:
        raise InputError(
            f"the head reads {len(places)} of the {n} layers whose sum the pretrained decoders read; let it "
            "read all, or pretrain without 'joined'"
        )
    theirs = pretrained.encoders.by_layer(n)
    if (sizes.activation, sizes.inner, *sizes.by_layer(len(layers))) != (
        pretrained.encoders.activation,
        pretrained.encoders.inner,
        *(theirs[place] for place in places),
    ):
        raise InputError(
            f"the pretrained encoders ({n} layers, {pretrained.encoders}) do not fit the head's "
            f"({len(layers)} of these layers, {sizes}); pretrain with the head's sizes, or give the head "
            f"those of its layers: widths: {[theirs[place].width for place in places]}"
        )
