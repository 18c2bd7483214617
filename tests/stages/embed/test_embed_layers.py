"""Layers, combination, finishing: on made-up features, against formulas written out."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from permafrost.stages.embed import EmbedConfig, embed, embed_ensemble, embed_layers
from permafrost.stages.embed.aggregations import aggregation as batches
from permafrost.stages.embed.aggregations.aggregation import Aggregation, Of, PooledRows
from permafrost.stages.embed.features import Features
from permafrost.stages.extraction.capture import Index
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.ragged import Ragged
from tests.stages.embed.memory_features import MemoryFeatures

SIZES = BackboneSizes(
    model_type="llama",
    n_layers=2,
    d_model=6,
    d_value=4,
    n_attn_heads=4,
    n_kv_heads=2,
    d_head=2,
    has_final_norm=False,
    is_decoder=True,
    max_positions=64,
)
LENGTHS = [3, 1, 5, 2]
SPANS = [[0, 1, 1], [1], [0, 1, 1, 1, 0], [1, 1]]
assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
"""Sums of a few float32 numbers near 1, added in another order."""
QUIET = SilentProgress()


def _features(**changes: Ragged) -> MemoryFeatures:
    rng = np.random.default_rng(0)

    def rows(width: int) -> Ragged:
        return Ragged.from_arrays([rng.normal(size=(n, width)).astype(np.float32) for n in LENGTHS])

    arrays = {f"hidden/{k}": rows(6) for k in (0, 1, 2)}
    arrays |= {f"values/{k}": rows(4) for k in (1, 2)}
    arrays |= {f"attention_rows/{k}": rows(4) for k in (1, 2)}
    projections = {
        k: (rng.normal(size=(8, 6)).astype(np.float32), rng.normal(size=6).astype(np.float32))
        for k in (1, 2)
    }
    span = Ragged.from_arrays([np.array(s, dtype=bool) for s in SPANS])
    return MemoryFeatures(SIZES, arrays | changes, span, projections)


def _embed(features: MemoryFeatures, **fields: object) -> np.ndarray:
    return embed(EmbedConfig.model_validate(fields), features, QUIET)


def _own(features: MemoryFeatures, array: str) -> list[np.ndarray]:
    """Rows of each text's span."""
    rows = features.arrays[array]
    return [x[np.array(s, dtype=bool)] for x, s in zip(rows, SPANS, strict=True)]


def test_hs_and_va_are_means_over_the_span_and_over_layers() -> None:
    """Relation 42: VA over a set of layers is the mean over its layers."""
    features = _features()
    for method, kind in (("hs", "hidden"), ("va", "values")):
        alone = [np.stack([x.mean(0) for x in _own(features, f"{kind}/{k}")]) for k in (1, 2)]
        found = _embed(features, method=method)
        assert_close(found, (alone[0] + alone[1]) / 2)
        per_layer = embed_layers(EmbedConfig(method=method), features, QUIET)  # type: ignore[arg-type]
        assert list(per_layer) == [1, 2]
        assert_close(per_layer[2], alone[1])
    assert np.array_equal(
        _embed(features, method="mean", layers="half"),
        _embed(features, method="hs", layers="half"),
    )
    assert np.array_equal(
        _embed(features, method="mean", of="values", layers="1"),
        _embed(features, method="va", layers="1"),
    )


def test_a_mean_and_a_sum_over_layers_have_the_same_cosines() -> None:
    """Relation 42, second half."""
    found = _embed(_features(), method="va").astype(np.float64)
    per_layer = embed_layers(EmbedConfig(method="va"), _features(), QUIET)
    summed = sum(v.astype(np.float64) for v in per_layer.values())

    def cosines(x: np.ndarray) -> np.ndarray:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return x @ x.T

    np.testing.assert_allclose(cosines(found), cosines(np.asarray(summed)), atol=1e-6)


def test_first_is_of_the_span_and_last_of_the_input() -> None:
    features = _features()
    whole = features.arrays["hidden/2"]
    own = _own(features, "hidden/2")
    assert np.array_equal(_embed(features, method="first"), [x[0] for x in own])
    assert np.array_equal(_embed(features, method="last"), [x[-1] for x in whole])
    assert not np.array_equal(whole[2][-1], own[2][-1])


def test_wva_reads_every_token_and_is_projected_before_the_average() -> None:
    """Relation 39: a mean over layers does not commute with their different projections."""
    features = _features()
    z = {
        k: np.stack(
            [
                np.concatenate(
                    [row[:, h] @ value[:, h // 2 * 2 : h // 2 * 2 + 2] for h in range(4)]
                )
                for row, value in zip(
                    features.arrays[f"attention_rows/{k}"],
                    features.arrays[f"values/{k}"],
                    strict=True,
                )
            ]
        )
        for k in (1, 2)
    }
    assert features.projections is not None
    (w1, b1), (w2, b2) = features.projections[1], features.projections[2]
    assert b1 is not None
    assert b2 is not None
    assert_close(_embed(features, method="wva"), (z[1] + z[2]) / 2)
    aligned = _embed(features, method="aligned_wva")
    assert_close(aligned, (z[1] @ w1 + b1 + z[2] @ w2 + b2) / 2)
    too_late = (z[1] + z[2]) / 2 @ ((w1 + w2) / 2) + (b1 + b2) / 2
    assert np.abs(aligned - too_late).max() > 0.1
    same = MemoryFeatures(SIZES, features.arrays, features.span, {1: (w1, None), 2: (w1, None)})
    assert_close(_embed(same, method="aligned_wva"), _embed(same, method="wva") @ w1)


def test_batches_of_one_text_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    features = _features()
    methods = ("mean", "last", "weighted_mean", "aligned_wva")
    together = [_embed(features, method=m) for m in methods]
    monkeypatch.setattr(batches, "BATCH_BYTES", 1)
    for method, expected in zip(methods, together, strict=True):
        assert np.array_equal(_embed(features, method=method), expected)


def test_concatenation_is_in_the_order_of_layers() -> None:
    features = _features()
    found = _embed(features, method="mean", layers="2,1", combine="concatenate")
    single = [_embed(features, method="mean", layers=k) for k in ("1", "2")]
    assert np.array_equal(found, np.concatenate(single, axis=1))


def test_an_ensemble_is_the_average_or_the_concatenation() -> None:
    rng = np.random.default_rng(1)
    members = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(8)]
    average = embed_ensemble(members, "average")
    assert_close(average, sum(members) / 8)
    assert average.dtype == np.float32
    assert np.array_equal(embed_ensemble(members, "concatenate"), np.hstack(members))
    wider = np.ones((4, 5), dtype=np.float32)
    assert embed_ensemble([members[0], wider], "concatenate").shape == (4, 8)
    with pytest.raises(InputError, match=r"\[4, 5\], the first has \[4, 3\]"):
        embed_ensemble([members[0], wider], "average")
    with pytest.raises(InputError, match="nothing to combine"):
        embed_ensemble([], "average")


def test_unit_length_is_the_last_step() -> None:
    features = _features()
    plain = _embed(features, method="hs").astype(np.float64)
    found = _embed(features, method="hs", normalise="l2")
    assert_close(found, plain / np.sqrt((plain**2).sum(1))[:, None])


def _with(array: str, change: Callable[[np.ndarray], None]) -> MemoryFeatures:
    rows = _features().arrays[array]
    data = rows.data.copy()
    change(data)
    return _features(**{array: Ragged(data, rows.offsets)})


def test_what_cannot_be_a_vector_is_refused_with_its_text() -> None:
    def nothing(data: np.ndarray) -> None:
        data[:] = 0

    def broken(data: np.ndarray) -> None:
        data[3, 1] = np.nan

    zeros = _with("hidden/2", nothing)
    assert not _embed(zeros, method="mean").any()
    with pytest.raises(InputError, match="text 0 has a vector of zeros"):
        _embed(zeros, method="mean", normalise="l2")
    with pytest.raises(InputError, match="MeanRow hold 1 non-finite numbers, the first in text 1"):
        _embed(_with("hidden/2", broken), method="mean")
    empty = Ragged.from_arrays([np.array(s, dtype=bool) for s in ([0, 0, 0], *SPANS[1:])])
    features = _features()
    no_span = MemoryFeatures(SIZES, features.arrays, empty)
    with pytest.raises(InputError, match="text 0 has no token in its span"):
        _embed(no_span, method="max")
    assert np.isfinite(_embed(no_span, method="last")).all()


class _Given(PooledRows):
    """Gives what a test says, whatever the rows."""

    kind: Literal["given"] = "given"
    gives: ClassVar[object]

    def pool(self, rows: Ragged) -> Any:
        return self.gives


class _Whole(Aggregation):
    """One vector for all texts, as a user's own reading of the arrays may give."""

    kind: Literal["whole"] = "whole"

    def vectors(self, of: Of, layer: Index, features: Features, progress: Progress) -> Any:
        return np.ones((1, 6), dtype=np.float32)


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (np.ones((1, 6)), r"_Given.pool gave .* \[1, 6\] for 4 texts of width 6; .* \[4, 6\]"),
        (np.ones(6), r"shape \[6\] for 4 texts"),
        (np.ones((3, 6)), r"shape \[3, 6\] for 4 texts"),
        (np.ones((4, 3)), r"shape \[4, 3\] for 4 texts of width 6"),
        (None, r"shape \[\] for 4 texts"),
        ([[1.0], [1.0, 2.0]], r"_Given.pool gave list, of which numpy makes no vectors"),
        (
            np.array([[1.0] * 6, [np.nan] * 6, *[[1.0] * 6] * 2]),
            r"_Given.pool gave numbers that are not finite, first for text 1, whose rows of hidden/2",
        ),
    ],
)
def test_what_a_pooling_gives_is_one_finite_vector_per_text(
    monkeypatch: pytest.MonkeyPatch, gives: object, told: str
) -> None:
    monkeypatch.setattr(_Given, "gives", gives, raising=False)
    with pytest.raises(InputError, match=told):
        embed(EmbedConfig(method=_Given()), _features(), QUIET)


def test_vectors_of_any_aggregation_are_one_per_text() -> None:
    with pytest.raises(InputError, match=r"_Whole.vectors gave .* \[1, 6\] for 4 texts"):
        embed(EmbedConfig(method=_Whole(), layers="2"), _features(), QUIET)


def test_layers_have_to_be_definite() -> None:
    with pytest.raises(InputError, match="choose_layers"):
        _embed(_features(), method="hs", layers="auto")
    assert list(embed_layers(EmbedConfig(method="va", layers="auto"), _features(), QUIET)) == [1, 2]
