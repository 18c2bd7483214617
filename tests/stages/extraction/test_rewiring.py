"""Placeholders and copied states against transformers' eager pass with copies made one by one by the test.

Ours runs fused and batched; the reference runs one text at a time. Relations are those of METHODS.md.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneFiles,
    load_backbone,
)
from permafrost.stages.extraction.recipes import OPENING, PLACEHOLDER, Encoded
from tests.stages.extraction.references import (
    BF16_TOLERANCE,
    DECODERS,
    ROW_TOLERANCE,
    Pairs,
    block_list,
    close,
    embeddings,
    entries,
    mean_row,
    per_text,
    prepended,
    rewired_run,
)
from tests.stages.extraction.rewired_runs import (
    HTP,
    INERT,
    NO_COPIES,
    REWIRED,
    STATES,
    agrees_with,
    grow,
    reference,
    run,
)
from tests.stages.extraction.tiny_models import N_LAYERS, TEXTS, each_family


def entering_blocks(backbone: Backbone, batch: Encoded, recipe: str = HTP) -> list[Tensor]:
    """What our own run feeds to blocks 1..L, padded."""
    passed: list[Tensor] = []
    handles = [
        block.register_forward_pre_hook(lambda _m, args: passed.append(args[0].clone()))
        for block in block_list(backbone.model)
    ]
    run(backbone, batch, recipe)
    for handle in handles:
        handle.remove()
    return passed


def copied(rows: Tensor, copies: np.ndarray) -> Tensor:
    """`rows` after copies, gathered first."""
    after = rows.clone()
    for source, target in copies.tolist():
        after[target] = rows[source]
    return after


@pytest.mark.parametrize("model_type", each_family(DECODERS))
class TestEveryDecoder:
    def test_everything_captured_equals_a_run_with_copies_one_by_one(
        self, pair: Pairs, model_type: str
    ) -> None:
        both = pair(model_type)
        batch = prepended(both.backbone)
        ours = run(both.backbone, batch)
        for i in range(len(batch)):
            agrees_with(ours, reference(both, batch, i), batch, i)

    def test_one_by_one_equals_batched(self, pair: Pairs, model_type: str) -> None:
        backbone = pair(model_type).backbone
        batch = prepended(backbone)
        assert len(set(batch.token_ids.lengths.tolist())) > 2
        together = run(backbone, batch)
        for i in range(len(batch)):
            for name, rows in run(backbone, batch.take(np.array([i]))).items():
                assert close(per_text(together[name], batch)[i], rows), name

    def test_before_a_rewired_block_only_the_targets_change_and_become_their_sources(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 24, bitwise; and what is captured is the stream before the copies."""
        backbone = pair(model_type).backbone
        batch = prepended(backbone)
        assert batch.copies is not None
        captured = run(backbone, batch)
        entering = entering_blocks(backbone, batch)
        for k in range(N_LAYERS):
            for i, before in enumerate(per_text(captured[f"hidden/{k}"], batch)):
                after = entering[k][i, : len(before)]
                pairs = batch.copies[i] if k in REWIRED else NO_COPIES
                assert torch.equal(after, copied(before, pairs)), (k, i)
                if k in REWIRED:
                    assert not torch.equal(after, before)
                for source, target in pairs.tolist():
                    assert torch.equal(after[target], before[source])

    def test_the_first_block_is_not_affected_when_copies_start_after_it(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 23, bitwise: the same computation up to there."""
        backbone = pair(model_type).backbone
        batch = prepended(backbone)
        with_copies, without = run(backbone, batch), run(backbone, batch, INERT)
        for name in ("hidden/0", "hidden/1", "values/1", "attention_rows/1"):
            assert torch.equal(with_copies[name], without[name]), name
        for name in ("hidden/2", "hidden/3", "values/2", "attention_rows/2"):
            assert not close(with_copies[name], without[name], 1e-3), name

    def test_without_a_rewired_block_it_is_the_plain_model_with_one_more_token(
        self, pair: Pairs, model_type: str, model_folder: Callable[[str], Path]
    ) -> None:
        """Relation 22; the reference is a model whose vocabulary holds the placeholder."""
        both = pair(model_type)
        batch = prepended(both.backbone)
        ours = run(both.backbone, batch, INERT)
        grown = grow(model_folder(model_type))
        for i, ids in enumerate(batch.token_ids):
            known = torch.tensor([t if t >= 0 else grown.config.vocab_size - 1 for t in ids])
            with torch.no_grad():
                theirs = grown(
                    input_ids=known[None], output_hidden_states=True, output_attentions=True
                )
            for k in range(N_LAYERS):
                rows = per_text(ours[f"hidden/{k}"], batch)[i]
                assert close(rows, theirs.hidden_states[k][0]), k
                weights = per_text(ours[f"attention_rows/{k + 1}"], batch)[i]
                expected = theirs.attentions[k][0, :, -1].T
                assert float((weights - expected).abs().max()) <= ROW_TOLERANCE
            final = per_text(ours["hidden/final"], batch)[i]
            assert close(final, theirs.last_hidden_state[0])

    def test_changing_the_last_token_reaches_earlier_states_only_through_copies(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 21. Bitwise where nothing may change: the same kernels on the same shapes."""
        backbone = pair(model_type).backbone
        batch = prepended(backbone, TEXTS[1:2], size=5)
        ids = batch.token_ids.data.copy()
        ids[-1] = ids[-1] - 1 if ids[-1] > 5 else ids[-1] + 1
        other = replace(batch, token_ids=replace(batch.token_ids, data=ids))
        plain, plain_other = run(backbone, batch, INERT), run(backbone, other, INERT)
        copied_run, copied_other = run(backbone, batch), run(backbone, other)
        for k in range(N_LAYERS + 1):
            name = f"hidden/{k}"
            assert torch.equal(plain[name][:-1], plain_other[name][:-1]), k
            assert not torch.equal(plain[name][-1], plain_other[name][-1]), k
            same = torch.equal(copied_run[name][:-1], copied_other[name][:-1])
            assert same == (k < 2), k

    def test_copies_before_the_first_block_leave_nothing_of_the_placeholder(
        self, pair: Pairs, model_type: str
    ) -> None:
        """Relation 28, bitwise."""
        backbone = pair(model_type).backbone
        batch = prepended(backbone)
        kinds = ("placeholder=mean", "placeholder=noise", "placeholder=noise,seed=1")
        at_once = [run(backbone, batch, f"htp:start=0,stop=1,{kind}") for kind in kinds]
        later = [run(backbone, batch, f"htp:start=1,stop=3,{kind}") for kind in kinds]
        for i in (1, 2):
            assert not torch.equal(at_once[0]["hidden/0"], at_once[i]["hidden/0"])
            for name in at_once[0]:
                if name != "hidden/0":
                    assert torch.equal(at_once[0][name], at_once[i][name]), name
            assert not close(later[0]["hidden/1"], later[i]["hidden/1"], 1e-3)
            assert not close(later[0]["hidden/3"], later[i]["hidden/3"], 1e-3)

    @pytest.mark.parametrize("blocks", [range(0), REWIRED], ids=["plain", "rewired"])
    def test_padding_on_the_left_with_positions_that_skip_it_agrees(
        self, pair: Pairs, model_type: str, blocks: range
    ) -> None:
        both = pair(model_type)
        batch = prepended(both.backbone)
        ours = run(both.backbone, batch, HTP if blocks else INERT)
        longest = int(batch.token_ids.lengths.max())
        for i, n in enumerate(batch.token_ids.lengths.tolist()):
            agrees_with(ours, reference(both, batch, i, blocks, padding=longest + 2 - n), batch, i)

    def test_early_exit_gives_the_same_numbers(self, pair: Pairs, model_type: str) -> None:
        backbone = pair(model_type).backbone
        batch = prepended(backbone)
        whole = run(backbone, batch)
        for capture in ("hidden=0", "hidden=1,values=1", "hidden=2@mean,attention_rows=2"):
            with entries(block_list(backbone.model)[-1]) as last:
                short = run(backbone, batch, HTP, capture)
            assert not last
            for name, rows in short.items():
                if "mean" not in name:
                    assert torch.equal(rows, whole[name]), name

    def test_bfloat16_copies_exactly_and_stays_near_float32(
        self, pair: Pairs, model_type: str, tiny_files: Callable[[str], BackboneFiles]
    ) -> None:
        """The reference of the same bfloat16 weights has the same kernels where there is no padding:
        equal bit by bit. Against float32, the layer after the first copies, which sees two blocks."""
        half = load_backbone(tiny_files(model_type), "bfloat16", "cpu")
        batch = prepended(half)
        assert batch.copies is not None
        row = mean_row(half.model)
        for i, ids in enumerate(batch.token_ids):
            ours = run(half, batch.take(np.array([i])), capture=STATES)
            inputs = embeddings(half.model, ids, {PLACEHOLDER: row, OPENING: row})
            with torch.no_grad():
                theirs = rewired_run(
                    pair(model_type), inputs, batch.copies[i], REWIRED, model=half.model
                )
            for k in range(N_LAYERS + 1):
                assert ours[f"hidden/{k}"].dtype == torch.bfloat16
                assert torch.equal(ours[f"hidden/{k}"], theirs.states[k]), k
        ours, full = run(half, batch), run(pair(model_type).backbone, batch)
        for name in ("hidden/0", "hidden/1", "hidden/2", "values/1", "values/2"):
            assert close(ours[name].float(), full[name], BF16_TOLERANCE), name
