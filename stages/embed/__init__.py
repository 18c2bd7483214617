"""Embed: sentence vectors from stored features, by a method without parameters or a trained head."""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.embed.aggregations import AGGREGATIONS, Aggregation, Method
    from permafrost.stages.embed.choice import best_together, choose_layers
    from permafrost.stages.embed.config import (
        EmbedConfig,
        WhiteningConfig,
        layers_of,
        required_arrays,
        with_layers,
    )
    from permafrost.stages.embed.corpus import CorpusVectors, embed_corpus, require_embeddable
    from permafrost.stages.embed.features import Features, StoredFeatures
    from permafrost.stages.embed.finish import require_finite, whitening_of
    from permafrost.stages.embed.head import embed_with_head, encode_with_head
    from permafrost.stages.embed.layers import (
        combined_layers,
        embed,
        embed_ensemble,
        embed_layers,
    )
    from permafrost.stages.embed.whitening import Whitening, fit_whitening
    from permafrost.stages.embed.write import require_place, whole_file, write_embeddings

__getattr__ = late_names(__name__)

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "CorpusVectors",
    "EmbedConfig",
    "Features",
    "Method",
    "StoredFeatures",
    "Whitening",
    "WhiteningConfig",
    "best_together",
    "choose_layers",
    "combined_layers",
    "embed",
    "embed_corpus",
    "embed_ensemble",
    "embed_layers",
    "embed_with_head",
    "encode_with_head",
    "fit_whitening",
    "layers_of",
    "require_embeddable",
    "require_finite",
    "require_place",
    "required_arrays",
    "whitening_of",
    "whole_file",
    "with_layers",
    "write_embeddings",
]
