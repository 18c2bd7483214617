"""Nodes of probes that need more of a backbone than its stored features: its unembedding, or itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flows.nodes import Node, code_of
from flows.probes import LogitLensProbe, NextTokenProbe, SensitivityProbe
from stages.embed import StoredFeatures
from stages.extraction.backbone import Backbone, load_backbone
from stages.extraction.recipes import Recipe, encode, expand_recipe, recipe_identity, resolve_recipe
from stages.extraction.target import ExtractTarget
from stages.extraction.unembedding import require_unembedding
from stages.sensitivity import SensitivityConfig, measure_sensitivity, require_differentiable
from stages.text_sample import choose_texts
from stages.token_prediction import (
    LogitLensConfig,
    logit_lens,
    probe_next_token,
    require_offsets,
    require_prefixes,
    require_tokens,
)
from storage.artifacts import ArtifactSpec, Draft
from storage.errors import InputError
from storage.features.layout import TOKEN_IDS
from storage.keys import to_plain
from storage.progress import Progress
from storage.quoting import quoted

if TYPE_CHECKING:
    from flows.dag import Dag

_LOADING = (load_backbone,)


def next_token_node(dag: "Dag", probe: NextTokenProbe, curve: str, task: str) -> Node:
    """Reads stored features, and the unembedding from the weight files; loads no backbone."""
    method, stores = probe.methods[curve], dag.stores[probe.recipe]
    arrays = (TOKEN_IDS.name, *method.arrays(dag.sizes))
    spec = ArtifactSpec(
        stage="probe",
        config={"kind": probe.kind, **to_plain(method)},
        inputs=(str(dag.corpus_nodes[task].spec.ref), *stores.inputs(arrays)),
        code=code_of(probe_next_token, StoredFeatures),
    )

    def make(draft: Draft, progress: Progress) -> None:
        (features,), (target,) = dag.members(probe.recipe, task), stores.targets
        found = probe_next_token(
            *(method, features, target.recipe, target.files, dag.corpus(task), progress),
            device=dag.device,
        )
        found.save(draft.folder)
        draft.summary = {"curve": curve, "task": task}

    def check() -> None:
        (target,) = stores.targets
        require_prefixes(target.recipe, target.sizes)
        require_unembedding(target.files)

        def bounds(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            found = encode(target.recipe, target.tokenizer, texts, target.max_length)
            return found.span_start, found.span_end

        sample = method.offset, method.n_tokens, method.seed
        require_tokens(dag.corpus(task), bounds, *sample)

    return Node("fit", f"probe {curve} · {task}", spec, make, check)


def logit_lens_node(dag: "Dag", probe: LogitLensProbe, curve: str, task: str) -> Node:
    """Runs the backbone: a store keeps the attention row of the readout token only."""
    method, run = probe.methods[curve], _run_of(dag, probe.recipe)
    spec = run.spec(dag, probe.kind, method, task, code_of(logit_lens, *_LOADING))

    def make(draft: Draft, progress: Progress) -> None:
        backbone, texts = run.shared(dag), dag.corpus(task).texts
        found = logit_lens(method, backbone, run.recipe, run.target.max_length, texts, progress)
        found.save(draft.folder)
        best = {f"best layer for +{o}": found.best(o)[0] for o in method.offsets}
        draft.summary = {"curve": curve, "task": task, **best}

    def check() -> None:
        require_prefixes(run.recipe, run.target.sizes)
        require_unembedding(run.target.files)
        require_offsets(method, run.target, run.recipe, dag.corpus(task).texts)

    return Node("backbone", f"probe {curve} · {task}", spec, make, check)


def sensitivity_node(dag: "Dag", probe: SensitivityProbe, curve: str, task: str) -> Node:
    """Runs the backbone, in float32: gradients cannot be had from stored features."""
    method = probe.methods[curve]
    run, config = _run_of(dag, method.recipe or probe.recipe), method.config
    spec = run.spec(dag, probe.kind, config, task, code_of(measure_sensitivity, *_LOADING))

    def make(draft: Draft, progress: Progress) -> None:
        backbone, texts = run.in_float32(dag), dag.corpus(task).texts
        length = run.target.max_length
        found = measure_sensitivity(config, backbone, run.recipe, length, texts, progress)
        found.save(draft.folder)
        draft.summary = {"curve": curve, "task": task, **found.summary}

    def check() -> None:
        require_differentiable(run.recipe)
        config.read_layer(run.target.sizes)
        choose_texts(dag.corpus(task).texts, config)

    return Node("backbone", f"probe {curve} · {task}", spec, make, check)


@dataclass(frozen=True)
class _Run:
    """The experiment's backbone under one recipe."""

    target: ExtractTarget
    """Any of the experiment's: all have one backbone."""
    recipe: Recipe
    """Resolved for it."""

    def spec(
        self,
        dag: "Dag",
        kind: str,
        config: LogitLensConfig | SensitivityConfig,
        task: str,
        code: dict[str, str],
    ) -> ArtifactSpec:
        """What is computed from which texts: the backbone by the digests of its files."""
        identity = self.target.identity
        backbone: dict[str, Any] = {
            "weights_digest": identity.weights_digest,
            "tokenizer_digest": identity.tokenizer_digest,
            "compute_dtype": "float32" if kind == "sensitivity" else identity.compute_dtype,
            "max_length": self.target.max_length,
            "recipe": recipe_identity(self.recipe),
        }
        return ArtifactSpec(
            stage="probe",
            config={"kind": kind, **to_plain(config), "backbone": backbone},
            inputs=(str(dag.corpus_nodes[task].spec.ref),),
            code=code,
        )

    def shared(self, dag: "Dag") -> Backbone:
        """The backbone that extractions use."""
        return dag.backbone.load(self.target, dag.experiment.runtime.extract.device)

    def in_float32(self, dag: "Dag") -> Backbone:
        """The same where it is in float32, else one of its own."""
        if self.target.identity.compute_dtype == "float32":
            return self.shared(dag)
        return load_backbone(self.target.files, "float32", dag.experiment.runtime.extract.device)


def _run_of(dag: "Dag", recipe: str) -> _Run:
    target = next(iter(dag.stores.values())).targets[0]
    first, *others = expand_recipe(dag.experiment.all_recipes[recipe])
    if others:
        raise InputError(
            f"the recipe {quoted(recipe)} is an ensemble of {len(others) + 1} prompts, which a probe that "
            f"runs the backbone cannot read; take one prompt of it"
        )
    return _Run(target, resolve_recipe(first, target.sizes))
