"""Which of the latents that a head reads pretrained encoders are for."""

from collections.abc import Sequence

from permafrost.stages.freeze.config import AutoencoderConfig, ClassifierConfig, PairFitConfig
from permafrost.stages.freeze.layers_head import LAYERS_HEADS, AutoencodedHead
from permafrost.storage.errors import InputError


def places_of(arrays: Sequence[str], pretrained: Sequence[str]) -> tuple[int, ...]:
    """Where the arrays that a head reads stand, from 0, among those that have a pretrained encoder.

    Raises:
        InputError: one has none.
    """
    if missing := [array for array in arrays if array not in pretrained]:
        raise InputError(
            f"the head reads {missing[0]}, for which there is no pretrained encoder (there are those of "
            f"{', '.join(pretrained)}); give the pretraining the latents of the heads that start from it: "
            "the same 'at', and all their layers"
        )
    return tuple(pretrained.index(array) for array in arrays)


def require_encoders(
    config: PairFitConfig,
    arrays: Sequence[str],
    pretrained: AutoencoderConfig | ClassifierConfig,
    pretrained_arrays: Sequence[str],
) -> None:
    """Check that a head can start from pretrained encoders, those of the latents that it reads.

    Args:
        config: the head, to be trained.
        arrays: what the head reads, one array a layer.
        pretrained: how the encoders were pretrained.
        pretrained_arrays: what has a pretrained encoder.

    Raises:
        InputError: the head has no autoencoder encoders; sizes, activations or the scale of latents differ;
            or an array has no pretrained encoder.
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
    places, n = places_of(arrays, pretrained_arrays), len(pretrained_arrays)
    if pretrained.joined is not None and len(places) < n:
        raise InputError(
            f"the head reads {len(places)} of the {n} layers whose sum the pretrained decoders read; let it "
            "read all, or pretrain without 'joined'"
        )
    theirs = pretrained.encoders.by_layer(n)
    if (sizes.activation, sizes.inner, *sizes.by_layer(len(arrays))) != (
        pretrained.encoders.activation,
        pretrained.encoders.inner,
        *(theirs[place] for place in places),
    ):
        raise InputError(
            f"the pretrained encoders ({n} layers, {pretrained.encoders}) do not fit the head's "
            f"({len(arrays)} of these layers, {sizes}); pretrain with the head's sizes, or give the head "
            f"those of its layers: widths: {[theirs[place].width for place in places]}"
        )
