"""An activation that is NaN or infinite: what is said of it, and what to do."""

import torch

from permafrost.stages.extraction.backbone import Backbone
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted


class NonFiniteError(PermafrostError):
    """The backbone computed NaN or infinity."""

    def __init__(self, name: str) -> None:
        """Args: name: of the array."""
        super().__init__(f"the backbone produced a non-finite activation in {name}")


def explained(error: NonFiniteError, backbone: Backbone, outcome: str) -> PermafrostError:
    """The same with its outcome and what to do: a wider dtype where there is one, or else other weights."""
    # Not the dtype of the rows: attention rows are float32 in every pass.
    computed = str(backbone.dtype).removeprefix("torch.")
    return PermafrostError(f"{error} (computed in {computed}); {outcome}. {_advice(backbone)}")


def _advice(backbone: Backbone) -> str:
    if backbone.dtype != torch.float32:
        return (
            "Compute in float32: --dtype float32, or 'dtype: float32' of 'backbone' in an experiment "
            "(backbone.dtype)"
        )
    source, wrong = quoted(backbone.files.source), _first_wrong_weight(backbone)
    if wrong is None:
        return (
            f"No weight of {source} is NaN or infinite, but what they compute is, in the widest dtype there "
            "is; see whether they are those of a trained model, and fetch them again"
        )
    return (
        f"The weights of {source} hold NaN or infinity, {wrong} first; fetch or convert them again"
    )


def _first_wrong_weight(backbone: Backbone) -> str | None:
    for name, weight in backbone.model.named_parameters():
        if weight.numel() and not all(torch.isfinite(x) for x in torch.aminmax(weight.detach())):
            return name
    return None
