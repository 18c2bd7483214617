"""One batch through the backbone: for every token and layer, vectors that live in the residual stream.

Axes: B texts, T positions, Z columns of all heads side by side, N tokens of all texts, G key-value heads,
R heads that share one, D width of a head.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.batch import Batch
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.contrast import contrasting
from permafrost.stages.extraction.families import projection_tensors
from permafrost.stages.extraction.forward import padded_batch, run_batch
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recording import Recorder, recording
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.token_prediction.config import Vector
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import quoted


class _HeadsKept:
    """Keeps what every output projection reads, of all tokens."""

    def __init__(self, batch: Batch) -> None:
        self.rows: dict[int, Tensor] = {}
        self._batch = batch

    def project(self, block: int, heads_BTZ: Tensor) -> Tensor:
        """The output projection of `block` is about to run."""
        self.rows[block] = self._batch.pack(heads_BTZ)
        return heads_BTZ

    def require_complete(self, sizes: BackboneSizes) -> None:
        """Raises: PermafrostError: a block's output projection did not run."""
        if len(self.rows) != sizes.n_layers:
            raise PermafrostError(
                f"the output projections of the blocks {sorted(self.rows)} of a {quoted(sizes.model_type)} "
                f"backbone ran, expected 1 to {sizes.n_layers}; nothing of this batch was kept. This model "
                f"does not run as its architecture's description in families.py says"
            )


def token_vectors(
    backbone: Backbone, encoded: Encoded, recipe: Recipe, vector: Vector
) -> Iterator[tuple[int, Float[Tensor, "n_tokens d_model"]]]:
    """Vectors of every token by layer, float32: hidden states of 0..L, the others of blocks 1..L.

    Value Aggregation weighs values by the attention row of one token only, its readout. Here every token
    has a row of its own over the tokens up to it, as the causal mask gives it: nothing is cut out of a
    longer row and scaled up again.

    Raises:
        PermafrostError: the model did not pass every tensor exactly once.
    """
    n_layers, what = backbone.sizes.n_layers, "values" if vector == "aligned_va" else "hidden"
    first = 1 if what == "values" else 0
    names = [ArrayName(what, None, k) for k in range(first, n_layers + 1)]
    batch = padded_batch(backbone, encoded, recipe)
    recorder, heads = Recorder(names, batch, n_layers), _HeadsKept(batch)
    with recording(recorder), contrasting(heads if vector == "aligned_wva" else None):
        run_batch(backbone, batch)
    recorder.require_complete(backbone.sizes.model_type)
    if vector == "hidden":
        yield from ((k, recorder.rows[f"hidden/{k}"].float()) for k in range(n_layers + 1))
        return
    if vector == "aligned_wva":
        heads.require_complete(backbone.sizes)
    for k in range(1, n_layers + 1):
        if vector == "aligned_wva":
            rows = heads.rows[k].float()
        else:
            means = _prefix_means(recorder.rows[f"values/{k}"].float(), encoded)
            rows = shared_by_heads(backbone.sizes, means)
        weight, bias = projection_of(backbone, k)
        yield k, rows @ weight + bias


def projection_of(backbone: Backbone, block: int) -> tuple[Tensor, Tensor]:
    """Weight `[d_heads, d_model]` and bias of a block's output projection, on the backbone's device; a bias
    of zeros where there is none."""
    weight, bias = projection_tensors(backbone, block)
    return weight, weight.new_zeros(weight.shape[1]) if bias is None else bias


def _prefix_means(
    rows: Float[Tensor, "n_tokens width"], encoded: Encoded
) -> Float[Tensor, "n_tokens width"]:
    """Of each token, the mean over it and all tokens of its text before it; summed in float64."""
    lengths = encoded.token_ids.lengths.tolist()
    parts = []
    for part in rows.double().split(lengths):
        counts = torch.arange(1, len(part) + 1, device=part.device)
        parts.append(part.cumsum(0) / counts[:, None])
    return torch.cat(parts).float()


def shared_by_heads(
    sizes: BackboneSizes, values: Float[Tensor, "n_tokens width"]
) -> Float[Tensor, "n_tokens z"]:
    """Each key-value head once for every attention head that reads it, heads side by side."""
    values_NGD = values.unflatten(1, (sizes.n_kv_heads, sizes.d_head))
    return values_NGD.repeat_interleave(sizes.n_attn_heads // sizes.n_kv_heads, dim=1).flatten(1)
