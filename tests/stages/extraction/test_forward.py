"""Captures against transformers' own outputs and hooks, one text at a time, on every family.

The reference runs with eager attention and without padding; ours runs fused and batched.
"""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel

from permafrost.stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.families import FAMILIES, output_projection
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded
from permafrost.storage.errors import PermafrostError
from permafrost.storage.ragged import Ragged
from tests.real_files import MODELS, needs_models
from tests.stages.extraction.conftest import Pair
from tests.stages.extraction.references import (
    BF16_TOLERANCE,
    EVERYTHING,
    ROW_TOLERANCE,
    STATE_TOLERANCE,
    Pairs,
    block_list,
    close,
    encoded,
    entries,
    per_text,
    projection,
    reference_run,
    reference_values,
    resolved,
    run,
    seen,
)
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS, WINDOW, each_family, save_model


@pytest.mark.parametrize("model_type", each_family(FAMILIES))
class TestEveryFamily:
    def test_hidden_states_equal_those_of_transformers(self, pair: Pairs, model_type: str) -> None:
        """Relation 30: a state at layer k is hidden_states[k]; the final norm is at full depth only."""
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "hidden=all", batch)
        rows = {name: per_text(values, batch) for name, values in ours.items()}
        for i, ids in enumerate(batch.token_ids):
            with seen(block_list(both.reference)[-1]) as last:
                theirs = reference_run(both, ids)
            for k in range(N_LAYERS):
                assert close(rows[f"hidden/{k}"][i], theirs.hidden_states[k][0]), k
            assert close(rows[f"hidden/{N_LAYERS}"][i], last[0][0])
            end = "hidden/final" if both.backbone.sizes.has_final_norm else f"hidden/{N_LAYERS}"
            assert close(rows[end][i], theirs.last_hidden_state[0])

    def test_values_equal_the_output_of_the_value_projection(
        self, pair: Pairs, model_type: str
    ) -> None:
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "values=all", batch)
        for block in range(1, N_LAYERS + 1):
            rows = per_text(ours[f"values/{block}"], batch)
            for i, ids in enumerate(batch.token_ids):
                assert close(rows[i], reference_values(both, block, ids)), block

    def test_attention_rows_equal_eager_attention_at_the_readout(
        self, pair: Pairs, model_type: str
    ) -> None:
        both = pair(model_type)
        batch = encoded(both.backbone)
        ours = run(both.backbone, "attention_rows=all", batch)
        readout = -1 if both.backbone.sizes.is_decoder else 0
        for i, ids in enumerate(batch.token_ids):
            theirs = reference_run(both, ids).attentions
            for block in range(1, N_LAYERS + 1):
                row = per_text(ours[f"attention_rows/{block}"], batch)[i]
                expected = theirs[block - 1][0, :, readout].T
                assert float((row - expected).abs().max()) <= ROW_TOLERANCE
                assert torch.allclose(row.sum(0), torch.ones(row.shape[1]), atol=ROW_TOLERANCE)

    def test_rows_times_values_is_what_enters_the_output_projection(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relations 37 and 38."""
        both = pair(model_type)
        sizes, batch = both.backbone.sizes, encoded(both.backbone)
        ours = run(both.backbone, "values=all,attention_rows=all", batch)
        readout = -1 if sizes.is_decoder else 0
        for block in range(1, N_LAYERS + 1):
            module = projection(both.reference, block)
            weight, bias = output_projection(both.backbone, block)
            for i, ids in enumerate(batch.token_ids):
                with seen(module, inputs=True) as entering, seen(module) as leaving:
                    reference_run(both, ids)
                row_TH = per_text(ours[f"attention_rows/{block}"], batch)[i]
                values = per_text(ours[f"values/{block}"], batch)[i]
                values_THD = values.unflatten(1, (sizes.n_kv_heads, -1)).repeat_interleave(
                    sizes.n_attn_heads // sizes.n_kv_heads, dim=1
                )
                z = torch.einsum("th,thd->hd", row_TH, values_THD).flatten()
                assert close(z, entering[0][0, readout])
                projected = z.numpy() @ weight + (0.0 if bias is None else bias)
                assert close(torch.from_numpy(projected), leaving[0][0, readout])

    def test_one_by_one_equals_batched(self, pair: Pairs, model_type: str) -> None:
        backbone = pair(model_type).backbone
        batch = encoded(backbone)
        together = run(backbone, EVERYTHING, batch)
        for i in range(len(TEXTS)):
            alone = batch.take(np.array([i]))
            for name, rows in run(backbone, EVERYTHING, alone).items():
                assert close(per_text(together[name], batch)[i], rows), name

    def test_early_exit_gives_the_same_numbers_and_runs_no_deeper_block(
        self, pair: Pairs, model_type: str
    ) -> None:
        backbone = pair(model_type).backbone
        whole = run(backbone, EVERYTHING)
        blocks = block_list(backbone.model)
        with entries(blocks[0]) as first, entries(blocks[1]) as second:
            short = run(backbone, "hidden=0-1,values=1,attention_rows=1")
            assert (len(first), len(second)) == (1, 0)
            only_input = run(backbone, "hidden=0")
            assert (len(first), len(second)) == (1, 0)
        assert set(short) == {"hidden/0", "hidden/1", "values/1", "attention_rows/1"}
        for name, rows in {**short, **only_input}.items():
            assert torch.equal(rows, whole[name]), name

    def test_bfloat16_stays_near_float32(
        self, tiny_files: Callable[[str], BackboneFiles], pair: Pairs, model_type: str
    ) -> None:
        half = load_backbone(tiny_files(model_type), "bfloat16", "cpu")
        ours, full = run(half, EVERYTHING), run(pair(model_type).backbone, EVERYTHING)
        for name, rows in ours.items():
            assert rows.dtype == (torch.float32 if "rows" in name else torch.bfloat16)
            # The layers nearest to the input: rounding has not yet grown through wide random blocks.
            if name in ("hidden/0", "hidden/1", "values/1", "attention_rows/1"):
                assert close(rows.float(), full[name], BF16_TOLERANCE), name


@pytest.mark.parametrize("model_type", ["bert", "llama", "mpnet"])
def test_pooled_arrays_are_poolings_of_token_arrays(pair: Pairs, model_type: str) -> None:
    backbone = pair(model_type).backbone
    batch = encoded(backbone, "plain:specials=exclude")
    tokens = run(backbone, "hidden=2,values=2", batch)
    pooled = run(
        backbone,
        ",".join(
            f"{what}=2@{how}"
            for what in ("hidden", "values")
            for how in ("mean", "sum", "last", "readout")
        ),
        batch,
    )
    readout = -1 if backbone.sizes.is_decoder else 0
    for what in ("hidden", "values"):
        for i, rows in enumerate(per_text(tokens[f"{what}/2"], batch)):
            own = rows[torch.from_numpy(batch.span[i])]
            assert len(own) == len(rows) - (1 if backbone.sizes.is_decoder else 2)
            assert torch.allclose(pooled[f"pooled/{what}_mean/2"][i], own.mean(0), atol=1e-5)
            assert torch.allclose(pooled[f"pooled/{what}_sum/2"][i], own.sum(0), atol=1e-4)
            assert torch.equal(pooled[f"pooled/{what}_last/2"][i], rows[-1])
            assert torch.equal(pooled[f"pooled/{what}_readout/2"][i], rows[readout])


def test_the_amount_of_padding_changes_nothing(pair: Pairs) -> None:
    for model_type in ("roberta", "mpnet", "mistral"):
        backbone = pair(model_type).backbone
        capture = EVERYTHING + ",hidden=all@mean"
        little = encoded(backbone, texts=(TEXTS[0], TEXTS[1]))
        much = encoded(backbone, texts=(TEXTS[0], TEXTS[2]))
        near, far = run(backbone, capture, little), run(backbone, capture, much)
        n = int(little.token_ids.lengths[0])
        for name in near:
            rows = 1 if name.startswith("pooled") else n
            assert close(near[name][:rows], far[name][:rows]), name


@pytest.mark.parametrize("model_type", ["mistral", "gemma2", "qwen2", "modernbert"])
def test_a_window_shorter_than_the_text_hides_what_is_outside(pair: Pairs, model_type: str) -> None:
    backbone = pair(model_type).backbone
    batch = encoded(backbone)
    ours = run(backbone, "attention_rows=all", batch)
    longest = int(batch.token_ids.lengths.argmax())
    assert batch.token_ids.lengths[longest] > 2 * WINDOW
    types = getattr(backbone.model.config, "layer_types", None) or ["sliding_attention"] * N_LAYERS
    assert "sliding_attention" in types
    for block, kind in enumerate(types, start=1):
        row = per_text(ours[f"attention_rows/{block}"], batch)[longest]
        seen_tokens = int((row > 0).all(1).sum())
        # Causal windows hold the query itself; ModernBERT's reach WINDOW tokens to each side of it.
        window = WINDOW + 1 if model_type == "modernbert" else WINDOW
        assert seen_tokens == (window if kind == "sliding_attention" else len(row)), block


def test_the_first_token_of_a_causal_model_sees_only_itself(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = encoded(backbone)
    rows = run(backbone, "attention_rows=1", batch, "plain:readout=first")["attention_rows/1"]
    for row in per_text(rows, batch):
        assert torch.equal(row[0], torch.ones_like(row[0]))
        assert not row[1:].any()


def test_template_spans_hold_the_text_and_not_the_prompt(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    batch = encoded(backbone, "template:template=the ice of {text} melts")
    ours = run(backbone, "hidden=3,hidden=3@mean,hidden=3@readout", batch)
    for i, rows in enumerate(per_text(ours["hidden/3"], batch)):
        start, end = int(batch.span_start[i]), int(batch.span_end[i])
        assert 0 < start < end < len(rows)
        assert torch.allclose(ours["pooled/hidden_mean/3"][i], rows[start:end].mean(0), atol=1e-5)
        assert torch.equal(ours["pooled/hidden_readout/3"][i], rows[-1])


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.is_floating_point():
                self.elements = max(self.elements, value.untyped_storage().nbytes() // 4)
        return result


@pytest.mark.parametrize("model_type", ["bert", "llama", "gemma2"])
def test_no_matrix_of_all_attention_weights_is_ever_made(
    tmp_path: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 512
    monkeypatch.setattr("permafrost.stages.extraction.kernels.CHUNK_ELEMENTS", 1 << 16)
    folder = save_model(model_type, tmp_path, max_position_embeddings=length)
    backbone = load_backbone(find_backbone(BackboneConfig(source=str(folder))), "float32", "cpu")
    generator = np.random.default_rng(0)
    ids = Ragged.from_arrays(
        [generator.integers(4, 300, n).astype(np.int32) for n in (length, 500)]
    )
    batch = Encoded(
        token_ids=ids,
        span=Ragged(np.ones(len(ids.data), np.bool_), ids.offsets),
        span_start=np.zeros(2, np.int64),
        span_end=ids.lengths,
        truncated=np.zeros(2, np.bool_),
    )
    with _Largest() as ours:
        run(backbone, EVERYTHING, batch)
    assert ours.elements < length * length * backbone.sizes.n_attn_heads
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with _Largest() as theirs, torch.no_grad():
        eager(input_ids=torch.zeros(2, length, dtype=torch.long))
    assert theirs.elements >= 2 * length * length * backbone.sizes.n_attn_heads


def test_threads_that_share_a_backbone_get_their_own_captures(pair: Pairs) -> None:
    backbone = pair("llama").backbone
    captures = {"hidden=all@mean": None, "values=all,attention_rows=2": None, "hidden=1": None}
    batches = {c: encoded(backbone, texts=TEXTS[: i + 2]) for i, c in enumerate(captures)}
    expected = {c: run(backbone, c, b) for c, b in batches.items()}
    found: dict[str, list[dict[str, Tensor]]] = {c: [] for c in captures}

    def work(capture: str) -> None:
        for _ in range(8):
            found[capture].append(run(backbone, capture, batches[capture]))

    threads = [threading.Thread(target=work, args=(c,)) for c in captures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for capture, results in found.items():
        assert len(results) == 8
        for result in results:
            assert result.keys() == expected[capture].keys()
            assert all(torch.equal(result[n], expected[capture][n]) for n in result)


def test_a_model_runs_as_usual_when_nobody_records(pair: Pairs) -> None:
    both = pair("gemma2")
    ids = encoded(both.backbone).token_ids[2]
    theirs = reference_run(both, ids).last_hidden_state
    with torch.no_grad():
        ours = both.backbone.model(input_ids=torch.from_numpy(ids.astype(np.int64))[None])
    assert close(ours.last_hidden_state, theirs)


def test_attention_that_is_not_routed_is_an_error(
    tiny_files: Callable[[str], BackboneFiles],
) -> None:
    backbone = load_backbone(tiny_files("llama"), "float32", "cpu")
    backbone.model.set_attn_implementation("eager")
    with pytest.raises(
        PermafrostError, match=re.escape("values/2 of a 'llama' backbone was seen 0 times")
    ):
        run(backbone, "hidden=1,values=2")


def test_a_block_that_runs_twice_is_an_error(tiny_files: Callable[[str], BackboneFiles]) -> None:
    backbone = load_backbone(tiny_files("bert"), "float32", "cpu")
    blocks = block_list(backbone.model)
    blocks[1] = blocks[0]
    with pytest.raises(PermafrostError, match=r"hidden/0 .* was seen 2 times"):
        run(backbone, "hidden=all")


@needs_models
def test_trained_decoders_give_eager_attention_rows_and_states() -> None:
    folders = [p.parent for p in MODELS.glob("*/config.json")]
    assert folders
    for folder in folders:
        files = find_backbone(BackboneConfig(source=str(folder)))
        backbone = load_backbone(files, "float32", "cpu")
        reference = AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ).eval()
        both = Pair(backbone, reference)
        batch = encoded(
            backbone, texts=("Snow melts slowly.", "The lake froze over last night, deep down.")
        )
        ours = run(backbone, EVERYTHING, batch)
        n = backbone.sizes.n_layers
        for i, ids in enumerate(batch.token_ids):
            theirs = reference_run(both, ids)
            for k in range(n):
                assert close(per_text(ours[f"hidden/{k}"], batch)[i], theirs.hidden_states[k][0])
                row = per_text(ours[f"attention_rows/{k + 1}"], batch)[i]
                assert close(row, theirs.attentions[k][0, :, -1].T)
            final = per_text(ours["hidden/final"], batch)[i]
            assert close(final, theirs.last_hidden_state[0])


@pytest.mark.parametrize("model_type", ["bert", "roberta", "mpnet"])
def test_left_padding_in_an_encoder_agrees(model_type: str, pair: Pairs) -> None:
    """transformers with padding on the left and positions that count real tokens, against ours."""
    found = pair(model_type)
    batch = encoded(found.backbone)
    ours = forward(found.backbone, batch, ["hidden/3"], resolved(found.backbone, "plain"))
    ours = ours["hidden/3"]
    longest = int(batch.token_ids.lengths.max())
    ids = torch.full((len(batch), longest), int(found.reference.config.pad_token_id))
    mask = torch.zeros_like(ids)
    for i, tokens in enumerate(batch.token_ids):
        ids[i, longest - len(tokens) :] = torch.from_numpy(tokens.astype(np.int64))
        mask[i, longest - len(tokens) :] = 1
    # RoBERTa and MPNet count positions over real tokens by themselves.
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(0)} if model_type == "bert" else {}
    with torch.no_grad():
        states = found.reference(
            input_ids=ids, attention_mask=mask, output_hidden_states=True, **positions
        ).hidden_states[3]
    expected = torch.cat([states[i][mask[i].bool()] for i in range(len(batch))])
    assert float((ours - expected).abs().max()) <= STATE_TOLERANCE * float(expected.abs().max())
