"""Widths of heads that name another method, made numbers before any key is made."""

from permafrost.flows.experiment import Experiment
from permafrost.stages.extraction.last_layer import replaced
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.heads.matching import matched_methods
from permafrost.storage.features.layout import StoreSizes, array_spec


def with_widths_matched(experiment: Experiment, sizes: BackboneSizes) -> Experiment:
    """The experiment with `hidden: match NAME` replaced by a number; the same object where there is none.

    Args:
        experiment: with the last layer named.
        sizes: of its backbone.

    Raises:
        InputError: see `matched_methods`.
    """

    def width(array: str) -> int:
        store = StoreSizes(
            n_layers=sizes.n_layers,
            d_model=sizes.d_model,
            d_value=sizes.d_value,
            n_attn_heads=sizes.n_attn_heads,
        )
        # A width is the same in every storage dtype.
        return array_spec(array, store, "float32").width or 1

    fields = matched_methods(experiment.methods, width)
    if not fields:
        return experiment
    methods = {
        name: method.model_copy(update=fields.get(name, {}))
        for name, method in experiment.methods.items()
    }
    return replaced(experiment, {"methods": methods})
