"""The probes of an experiment: what is measured of stored features, told apart by `kind`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flows.recipes import DEFAULT_RECIPE
from stages.corpus.columns import TaskKind
from stages.embed import required_arrays
from stages.extraction.sizes import BackboneSizes
from stages.layer_probe import LayerProbeConfig
from stages.probes import GeometryConfig, GraphTimeConfig, TaskScoreConfig, TokenGraphConfig
from stages.sensitivity import SensitivityConfig
from stages.token_prediction import LogitLensConfig, NextTokenConfig

LABELLED: tuple[TaskKind, ...] = ("classification", "pair_classification", "similarity")
ANY_TASK: tuple[TaskKind, ...] = (*LABELLED, "unlabelled")


class _Probe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: tuple[str, ...] = Field(min_length=1)
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""


class LayerProbe(_Probe):
    """Scores of every layer alone: Spearman correlation of graded pairs, or segment matching."""

    kind: Literal["layers"] = "layers"
    methods: dict[str, LayerProbeConfig] = Field(min_length=1)
    """By the name that the curve gets, as in every probe."""


class TaskScoreProbe(_Probe):
    """Score of every layer on labelled tasks, and the layer that dev would choose."""

    kind: Literal["task_score"] = "task_score"
    methods: dict[str, TaskScoreConfig] = Field(min_length=1)


class GeometryProbe(_Probe):
    """Anisotropy and effective dimension of every layer."""

    kind: Literal["geometry"] = "geometry"
    methods: dict[str, GeometryConfig] = Field(min_length=1)


class TokenGraphProbe(_Probe):
    """GLOT's token graph at several thresholds."""

    kind: Literal["token_graph"] = "token_graph"
    methods: dict[str, TokenGraphConfig] = Field(min_length=1)


class GraphTimeProbe(_Probe):
    """What GLOT's token graph and training step cost by length."""

    kind: Literal["graph_time"] = "graph_time"
    methods: dict[str, GraphTimeConfig] = Field(min_length=1)


def _default_predictor(value: Any) -> Any:
    is_open = isinstance(value, dict) and "predictor" not in value
    return {"predictor": "linear", **value} if is_open else value


class NextTokenProbe(_Probe):
    """How well the next token is predicted: by a linear map of each layer, or by one of two baselines."""

    kind: Literal["next_token"] = "next_token"
    methods: dict[str, Annotated[NextTokenConfig, BeforeValidator(_default_predictor)]] = Field(
        min_length=1
    )


class LogitLensProbe(_Probe):
    """Ranks of later tokens by the backbone's own unembedding. Runs the backbone."""

    kind: Literal["logit_lens"] = "logit_lens"
    methods: dict[str, LogitLensConfig] = Field(min_length=1)


class SensitivityMethod(SensitivityConfig):
    """One curve, perhaps under a recipe of its own."""

    recipe: str | None = None
    """Its name in the experiment; the probe's if not given."""

    @property
    def config(self) -> SensitivityConfig:
        """What is measured."""
        fields = {name: getattr(self, name) for name in SensitivityConfig.model_fields}
        return SensitivityConfig(**fields)


class SensitivityProbe(_Probe):
    """How much a text's vector depends on each of its tokens. Runs the backbone, with gradients."""

    kind: Literal["sensitivity"] = "sensitivity"
    methods: dict[str, SensitivityMethod] = Field(min_length=1)


def _default_kind(value: Any) -> Any:
    return {"kind": "layers", **value} if isinstance(value, dict) and "kind" not in value else value


ProbeConfig = Annotated[
    LayerProbe
    | TaskScoreProbe
    | GeometryProbe
    | TokenGraphProbe
    | GraphTimeProbe
    | NextTokenProbe
    | LogitLensProbe
    | SensitivityProbe,
    Field(discriminator="kind"),
    BeforeValidator(_default_kind),
]
"""One section of `probes`; `layers` unless it says which kind."""

ProbeMethod = (
    LayerProbeConfig | TaskScoreConfig | GeometryConfig | TokenGraphConfig | GraphTimeConfig
)
"""What one curve of a probe of stored features alone is made from."""

PROBED: dict[str, tuple[TaskKind, ...]] = {
    "layers": ("similarity", "unlabelled"),
    "task_score": LABELLED,
    "geometry": ANY_TASK,
    "token_graph": ANY_TASK,
    "graph_time": ANY_TASK,
    "next_token": ANY_TASK,
    "logit_lens": ANY_TASK,
    "sensitivity": ANY_TASK,
}
"""Kind of probe to the kinds of task that it is made for."""


def method_arrays(method: ProbeMethod | NextTokenConfig, sizes: BackboneSizes) -> tuple[str, ...]:
    """Stored arrays that one curve is made from.

    Raises:
        InputError: a layer that the backbone does not have.
    """
    if isinstance(method, LayerProbeConfig):
        return required_arrays(method.embed_config, sizes)
    return method.arrays(sizes)


def probe_arrays(probe: ProbeConfig, sizes: BackboneSizes) -> set[str]:
    """Stored arrays of all curves of a probe, none for one that runs the backbone; raises as
    `method_arrays`."""
    if isinstance(probe, LogitLensProbe | SensitivityProbe):
        return set()
    return {array for m in probe.methods.values() for array in method_arrays(m, sizes)}


def reads_one_store(probe: ProbeConfig) -> bool:
    """Whether the prompts of an ensemble, one store each, cannot be averaged for this probe."""
    return isinstance(probe, GeometryProbe | TokenGraphProbe | GraphTimeProbe | NextTokenProbe)


def probe_recipes(probe: ProbeConfig) -> tuple[str, ...]:
    """Names of the recipes that a probe looks at."""
    if isinstance(probe, SensitivityProbe):
        return tuple(dict.fromkeys(m.recipe or probe.recipe for m in probe.methods.values()))
    return (probe.recipe,)
