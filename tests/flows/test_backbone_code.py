"""Where a stage runs the backbone, the code that the backbone runs with is in its key."""

import inspect
from importlib import import_module, util
from pathlib import Path
from pkgutil import iter_modules

import pytest

import permafrost.flows.methods
import permafrost.flows.nodes
from permafrost.flows.methods.finetuned import FinetuneHead, ScoreTunedHead
from permafrost.flows.methods.graph_text import Finetune, ScoreFinetuned
from permafrost.flows.methods.head import FitHead
from permafrost.flows.methods.probes.attention_map import ProbeAttentionMap
from permafrost.flows.methods.probes.logit_lens import ProbeLogitLens
from permafrost.flows.methods.probes.path_bound import ProbePathBound
from permafrost.flows.methods.probes.sensitivity import ProbeSensitivity
from permafrost.flows.nodes.adapting import Adapt
from permafrost.flows.nodes.extraction import Extract
from permafrost.flows.stage import Stage, code_of
from permafrost.storage import fingerprint

ATTENTION = "permafrost.stages.extraction.attention"
BACKBONE = "permafrost.stages.extraction.backbone:Backbone"
RUNNING = [
    *(Finetune, ScoreFinetuned, FinetuneHead, ScoreTunedHead),
    *(ProbeAttentionMap, ProbeLogitLens, ProbePathBound, ProbeSensitivity),
]


def stages() -> set[type[Stage]]:
    """Every stage of the project."""
    found: set[type[Stage]] = set()
    packages = [permafrost.flows.methods, permafrost.flows.nodes, permafrost.flows.methods.probes]
    for package in packages:
        for info in iter_modules(package.__path__, f"{package.__name__}."):
            module = import_module(info.name)
            classes = [c for _, c in inspect.getmembers(module, inspect.isclass)]
            found |= {
                c for c in classes if issubclass(c, Stage) and c.__module__ == module.__name__
            }
    return found


def test_these_are_all_that_are_handed_a_backbone() -> None:
    reaching = {stage for stage in stages() if BACKBONE in stage.code([stage])}
    # It merges weights, and computes nothing.
    assert reaching == {*RUNNING, Adapt}
    loading = {
        stage
        for stage in stages()
        if any(call in inspect.getsource(stage) for call in ("backbone.load(", "backbone.own("))
    }
    # What an extraction is found by holds no code (decision 0004).
    assert {ProbeLogitLens, ProbeSensitivity} <= loading <= {*RUNNING, Extract}


@pytest.mark.parametrize("stage", RUNNING, ids=lambda stage: stage.__name__)
def test_hooks_attention_and_tokenisation_are_in_the_key(stage: type[Stage]) -> None:
    code = code_of(stage)
    for name in (
        f"{ATTENTION}:observed_attention",
        "permafrost.stages.extraction.biased_attention:BiasedSelfAttention",
        "permafrost.stages.extraction.recording:watch",
        "permafrost.stages.extraction.families:FAMILIES",
        "permafrost.stages.extraction.encoding:encode_for",
        "permafrost.stages.extraction.recipes.recipe:encode",
    ):
        assert name in code, name


def test_another_attention_makes_another_key_and_leaves_heads_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {stage: code_of(stage) for stage in (Finetune, FitHead)}
    spec = util.find_spec(ATTENTION)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    changed = source.replace("query, key = query.detach(), key.detach()", "pass")
    assert changed != source
    fingerprint.use_source(ATTENTION, changed)
    try:
        after = {stage: code_of(stage) for stage in (Finetune, FitHead)}
    finally:
        fingerprint.use_source(ATTENTION, source)
    assert after[FitHead] == before[FitHead]
    own = {name for name in before[Finetune] if before[Finetune][name] != after[Finetune][name]}
    assert own == {f"{ATTENTION}:observed_attention"}
