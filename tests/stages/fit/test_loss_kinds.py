"""A loss is one file, ours or a user's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional

from permafrost.flows.methods.head import FitHead
from permafrost.flows.stage import code_of
from permafrost.stages import plugins
from permafrost.stages.fit import LOSSES, FitConfig, OptimConfig, fit, load_head, require_trainable
from permafrost.stages.fit.losses import ClassLoss, default_loss
from permafrost.stages.heads import ScorerHead
from permafrost.stages.heads.head import Head, Pooling
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.stages.synthetic_fit import WIDTH, make_data, make_pairs, same_fit

MARGIN_RANKING = '''
"""Graded pairs in the right order: each pair's cosine above that of every pair with a lower grade."""

from typing import Literal

from torch.nn import functional

from permafrost.stages.fit.losses import GradedLoss


class MarginRanking(GradedLoss):
    kind: Literal["margin_ranking"] = "margin_ranking"
    margin: float = 0.1

    def of(self, first, second, wanted):
        cosines = functional.cosine_similarity(first, second, dim=1)
        is_higher = (wanted[:, None] > wanted).to(cosines)
        lacking = functional.relu(self.margin - (cosines[:, None] - cosines))
        return (is_higher * lacking).sum() / is_higher.sum().clamp_min(1)
'''


class _GivenHead(Head):
    """Builds what a test says."""

    kind: Literal["given_head"] = "given_head"
    builds: ClassVar[object]

    def build(self, d_in: int, generator: torch.Generator) -> Any:
        return self.builds


class _Vectors(Pooling):
    """Gives what a test makes of tokens and the number of texts."""

    def __init__(self, d_out: int | None, gives: Callable[[Any, int], Any] | None = None) -> None:
        super().__init__()
        self.gives = gives
        if d_out is not None:
            self.d_out = d_out

    def forward(self, tokens: Any, offsets: Any) -> Any:
        assert self.gives is not None
        return self.gives(tokens, len(offsets) - 1)


@pytest.fixture
def margin_ranking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    path = tmp_path / "margin_ranking.py"
    path.write_text(MARGIN_RANKING)
    plugins.use_files([path])
    return path


def _config(**loss: object) -> FitConfig:
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=4)
    given = {"head": ScorerHead(hidden=8), "seed": 3, "optim": optim, "metric": "spearman"}
    return FitConfig.model_validate(given | {"loss": {"kind": "margin_ranking", **loss}})


def test_a_loss_from_one_file_trains_is_saved_and_read_again(
    margin_ranking: Path, tmp_path: Path
) -> None:
    data = make_pairs("similarity")
    result = fit(_config(), data, SilentProgress())
    assert result.history[-1].train_loss < result.history[0].train_loss
    other = fit(_config(margin=0.5), data, SilentProgress())
    assert other.log[0].loss > result.log[0].loss, "its fields reach it"
    same_fit(result, fit(_config(), data, SilentProgress()))
    result.save(tmp_path)
    assert load_head(tmp_path).config.loss.model_dump() == {"kind": "margin_ranking", "margin": 0.1}
    with pytest.raises(InputError, match=r"margin_ranking is not for .*\{kind: cross_entropy\}"):
        require_trainable(_config(), make_data())


@pytest.mark.usefixtures("margin_ranking")
def test_what_is_wrong_with_it_is_told_where_it_is() -> None:
    with pytest.raises(ValidationError, match=r"loss\.margin\n"):
        _config(margin="wide")
    with pytest.raises(ValidationError, match=r"expected tags: .*'margin_ranking'"):
        FitConfig.model_validate({"head": ScorerHead(), "seed": 0, "loss": {"kind": "margin"}})


class _Given(ClassLoss):
    """Gives what a test makes of the examples' cross-entropies."""

    kind: Literal["given"] = "given"
    gives: ClassVar[Callable[[torch.Tensor], object]]

    def of(self, logits: Any, labels: Any) -> Any:
        return type(self).gives(functional.cross_entropy(logits, labels, reduction="none"))


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (lambda each: each, r"_Given.of gave shape \[16\]; return one number, such as .mean\(\)"),
        (lambda each: each.mean().detach(), r"_Given.of gave a number without a gradient"),
        (lambda each: each.mean().item(), r"_Given.of gave float; return a tensor"),
        (lambda each: each.mean().detach().numpy(), r"_Given.of gave (ndarray|float32); return"),
    ],
)
def test_what_a_loss_gives_is_one_number_with_a_gradient(
    monkeypatch: pytest.MonkeyPatch, gives: Callable[[torch.Tensor], object], told: str
) -> None:
    monkeypatch.setattr(_Given, "gives", staticmethod(gives), raising=False)
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=1)
    config = FitConfig(head=ScorerHead(hidden=8), seed=3, optim=optim, loss=_Given())
    with pytest.raises(InputError, match=told):
        fit(config, make_data(), SilentProgress())


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("built", "told"),
    [
        (nn.Linear(WIDTH, 3), r"_GivenHead.build gave Linear, which is no Pooling; return one"),
        (_Vectors(None), r"_Vectors has no d_out; set it"),
        (_Vectors(WIDTH, lambda tokens, n: None), r"_Vectors gave NoneType instead of a tensor"),
        (_Vectors(WIDTH, lambda tokens, n: tokens[:1]), rf"shape \[1, {WIDTH}\] for 16 texts"),
    ],
)
def test_what_a_head_builds_is_a_pooling_that_gives_one_vector_per_text(
    monkeypatch: pytest.MonkeyPatch, built: object, told: str, trains: bool
) -> None:
    monkeypatch.setattr(_GivenHead, "trains", trains)
    monkeypatch.setattr(_GivenHead, "builds", built, raising=False)
    optim = OptimConfig(lr=1e-2, batch_size=16, max_epochs=1)
    with pytest.raises(InputError, match=told):
        fit(FitConfig(head=_GivenHead(), seed=3, optim=optim), make_data(), SilentProgress())


def test_every_kind_of_task_has_a_loss_of_its_own() -> None:
    tasks = ("classification", "pair_classification", "similarity", "unlabelled")
    found = {task: default_loss(task) for task in tasks}
    assert [loss.kind for loss in found.values()] == [
        "cross_entropy",
        "cross_entropy",
        "cosine_mse",
        "contrastive",
    ]
    assert all(task in loss.task_kinds for task, loss in found.items())
    ours = {n for n, k in LOSSES.kinds().items() if k.__module__.startswith("permafrost.stages")}
    assert ours == {"cross_entropy", "cosine_mse", "contrastive"}


def test_a_fit_depends_on_the_code_of_its_own_loss_only() -> None:
    def files(*entries: type) -> set[str]:
        return {name.partition(":")[0].rpartition(".")[2] for name in code_of(FitHead, *entries)}

    kinds = set(LOSSES.kinds())
    assert not files() & kinds
    assert files(LOSSES.kinds()["cosine_mse"]) & kinds == {"cosine_mse"}
