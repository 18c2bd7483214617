"""HTP's two inequalities on a real decoder, block by block.

Source: HTP, section 3.1 and appendix A. With attention weights held constant, the derivative of the last
token's vector by the input embedding of token i has a spectral norm of at most K A[n, i], that of the mean
over n tokens at most K / n times the sum over j of A[j, i]: A is the product of the mixings of all blocks
(`path_sums`), K the product of their constants (`local_constants`). Both right sides sum to K over i, so they
say nothing of which vector depends more on a text, only how dependence is spread; how far below K A the
derivative lies is measured here. A rewiring's copies are one more mixing, of norm 1.

Axes: T positions, D columns, C copies of a text.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.attention import holding_attention
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.capture import ArrayName, Index
from permafrost.stages.extraction.encoding import encode_for
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.sensitivity.config import Readout, require_differentiable
from permafrost.stages.sensitivity.gradients import BATCH_TOKENS, differentiable
from permafrost.stages.sensitivity.local_constants import (
    TextConstants,
    spectral_norms,
    text_constants,
)
from permafrost.stages.sensitivity.mixing import copies_before, path_sums
from permafrost.stages.sensitivity.path_bound_config import PathBoundConfig
from permafrost.stages.sensitivity.profile import own_tokens
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress

READOUTS: dict[Readout, str] = {"readout": "last token", "mean": "mean"}
FEWEST = 4
"""Own tokens that a text has at least: of fewer there is no spread to speak of."""

Values = dict[tuple[str, Index], float]
"""Of one text, by measure and depth."""


def measure_path_bound(
    config: PathBoundConfig,
    backbone: Backbone,
    recipe: Recipe,
    max_length: int,
    texts: Sequence[str],
    progress: Progress,
) -> ProbeCurves:
    """Both sides of both inequalities after every block, over a sample of the texts.

    By depth, of the last token and of the mean: the largest share of the bound that a derivative reaches
    (1 or less, or the bound does not hold); the first token's share of all tokens' bounds and norms; their
    evenness, the number of tokens alike that would have the same entropy, over the number of tokens. And
    log10 of K, and the weight of the residual stream where the attention's is 1. The largest share is over
    texts, all else means.

    Args:
        config: which texts, and after which blocks.
        backbone: in float32.
        recipe: resolved for the backbone.
        max_length: tokens per input at most, beside the config's own bound.
        texts: of the corpus.
        progress: told of every text.

    Raises:
        InputError: an architecture, a recipe or a block that there is no bound for, or no text long enough.
    """
    require_differentiable(recipe, backbone.sizes)
    blocks = config.read_blocks(backbone.sizes)
    chosen = choose_texts(texts, config)
    longest = min(max_length, config.max_tokens)
    encoded = encode_for(backbone.files, recipe, backbone.tokenizer, chosen, longest)
    depths: list[Index] = [*blocks]
    if config.blocks is None and backbone.sizes.has_final_norm:
        depths.append("final")
    found: list[Values] = []
    progress.start("path bound", len(encoded), "texts")
    try:
        for i in range(len(encoded)):
            text = encoded.take(np.array([i]))
            if len(own_tokens(text, 0)) >= FEWEST:
                found.append(dict(_of_text(backbone, text, recipe, depths)))
            progress.advance(1)
    finally:
        progress.finish()
    if not found:
        raise InputError(
            f"none of {len(chosen)} texts has {FEWEST} tokens of its own within {longest}; raise max_tokens "
            "or give longer texts"
        )
    return _combined(found, depths, backbone.sizes.n_layers)


def jacobian_norms(
    backbone: Backbone, encoded: Encoded, recipe: Recipe, names: Sequence[ArrayName]
) -> dict[str, Float64[np.ndarray, " t"]]:
    """Spectral norm of the derivative of a pooled vector by each position's input embedding.

    Attention weights are held constant.

    Args:
        backbone: in float32.
        encoded: one text.
        recipe: resolved; its copies are differentiated through.
        names: of pooled hidden states.
    """
    d_model, length = backbone.sizes.d_model, int(encoded.token_ids.lengths[0])
    rows: dict[str, list[Tensor]] = {name.text: [] for name in names}
    for some in torch.eye(d_model, device=backbone.device).split(max(BATCH_TOKENS // length, 1)):
        copies = encoded.take(np.zeros(len(some), dtype=np.int64))
        with holding_attention():
            inputs, outputs = differentiable(backbone, copies, recipe, names)
        for k, name in enumerate(rows):
            product = (outputs[name] * some).sum()
            (gradient_CTD,) = torch.autograd.grad(product, inputs, retain_graph=k + 1 < len(rows))
            rows[name].append(gradient_CTD)
    return {name: spectral_norms(torch.cat(parts).transpose(0, 1)) for name, parts in rows.items()}


def bounds(
    constants: TextConstants, encoded: Encoded, recipe: Recipe, depth: Index
) -> dict[Readout, Float64[np.ndarray, " t"]]:
    """The right sides of both inequalities at a depth, by position."""
    n = len(constants.blocks) if depth == "final" else depth
    blocks = constants.blocks[:n]
    residuals = [1 / b.strength for b in blocks]
    sums = path_sums([b.mixing for b in blocks], residuals, copies_before(recipe, encoded, n))
    constant = constants.constant(n) * (constants.final_norm if depth == "final" else 1)
    return {"readout": constant * sums[-1], "mean": constant * sums[encoded.span[0]].mean(axis=0)}


def evenness(values: Float64[np.ndarray, " n"]) -> float:
    """Number of values alike that would have the entropy of these shares, over the number of values; in
    (0, 1]."""
    shares = values / values.sum()
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)))
    return float(np.exp(entropy) / len(values))


def _of_text(
    backbone: Backbone, text: Encoded, recipe: Recipe, depths: Sequence[Index]
) -> Iterator[tuple[tuple[str, Index], float]]:
    names = {(r, d): ArrayName("hidden", r, d) for r in READOUTS for d in depths}
    norms = jacobian_norms(backbone, text, recipe, list(names.values()))
    constants, own = text_constants(backbone, text, recipe), own_tokens(text, 0)
    for depth in depths:
        right = bounds(constants, text, recipe, depth)
        for readout, called in READOUTS.items():
            norm, bound = norms[names[readout, depth].text], right[readout]
            yield (_reached(called), depth), _largest_share(norm, bound)
            for side, values in (("bound", bound[own]), ("measured", norm[own])):
                yield (f"{called}: evenness, {side}", depth), evenness(values)
                share = float(values[0] / values.sum())
                yield (f"{called}: share of the first token, {side}", depth), share
        n = len(constants.blocks) if depth == "final" else depth
        norm = constants.final_norm if depth == "final" else 1.0
        yield ("log10 of K", depth), float(np.log10(constants.constant(n) * norm))
        if depth != "final":
            weight = 1 / constants.blocks[depth - 1].strength
            yield ("weight of the residual stream", depth), weight


def _reached(called: str) -> str:
    return f"{called}: largest share of the bound"


def _largest_share(norm: Float64[np.ndarray, " t"], bound: Float64[np.ndarray, " t"]) -> float:
    """Positions that neither side reaches do not count."""
    reached = (norm > 0) | (bound > 0)
    return float(np.max(norm[reached] / bound[reached]))


def _combined(texts: Sequence[Values], depths: Sequence[Index], n_layers: int) -> ProbeCurves:
    largest = {_reached(called) for called in READOUTS.values()}
    measures = dict.fromkeys(measure for measure, _ in texts[0])
    points: list[Point] = []
    for measure in measures:
        over: Callable[[NDArray[np.float64]], float] = np.max if measure in largest else np.mean
        unit = "share" if "evenness" in measure or "first token" in measure else "number"
        for depth in depths:
            values = [text[measure, depth] for text in texts if (measure, depth) in text]
            if values:
                x = n_layers + 1 if depth == "final" else depth
                value = float(over(np.array(values)))
                points.append(Point(measure, unit, float(x), str(depth), value))
    return ProbeCurves("block", tuple(points))
