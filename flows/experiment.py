"""Experiment files: one complete, runnable description each."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from stages.controls import BagOfWordsControl, LengthControl
from stages.corpus.config import CorpusConfig
from stages.extraction.backbone import BackboneConfig
from stages.extraction.capture import Capture
from stages.extraction.recipe import PlainRecipe, Recipe
from stages.extraction.target import ExtractConfig, ExtractRuntime
from stages.fit import FitConfig, Metric, OptimConfig
from stages.heads import HeadConfig
from stages.report.config import ReportConfig
from storage.errors import InputError
from storage.features.identity import FloatName
from storage.features.layout import Codec


class HeadMethod(BaseModel):
    """A head trained on cached features, once per task and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["head"] = "head"
    head: HeadConfig
    layer: str
    """Stored array that the head reads, e.g. `hidden/6`."""
    optim: OptimConfig = OptimConfig()
    labels: Literal["true", "shuffled"] = "true"
    """`shuffled` makes this a control: it must sit at chance."""
    grid: dict[str, tuple[JsonValue, ...]] = {}
    """Dotted field to candidate values; the best on dev is kept."""
    metric: Metric = "accuracy"

    def fit_config(self, seed: int) -> FitConfig:
        """The complete config of one fit."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        return FitConfig(**fields, seed=seed)


MethodConfig = Annotated[
    HeadMethod | LengthControl | BagOfWordsControl, Field(discriminator="kind")
]


class RunRuntime(BaseModel):
    """How an experiment runs; nothing here is part of any key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = 0
    """Stages side by side; 0 means one per CPU core."""
    memory_bytes: int = 1 << 30
    """Features of one reader held in memory, at most; beyond, windows of segments are streamed."""
    extract: ExtractRuntime = ExtractRuntime()

    @property
    def n_workers(self) -> int:
        """Stages side by side."""
        return self.workers or len(os.sched_getaffinity(0))


class Experiment(BaseModel):
    """What is computed from which texts, and how it is reported."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    backbone: BackboneConfig
    recipe: Recipe = PlainRecipe()
    capture: Capture
    store_dtype: FloatName = "float16"
    codec: Codec = "none"
    tasks: dict[str, CorpusConfig] = Field(min_length=1)
    methods: dict[str, MethodConfig] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    report: ReportConfig
    runtime: RunRuntime = RunRuntime()

    @property
    def extract_config(self) -> ExtractConfig:
        """The part that the extraction depends on."""
        return ExtractConfig(
            backbone=self.backbone,
            recipe=self.recipe,
            capture=self.capture,
            store_dtype=self.store_dtype,
            codec=self.codec,
        )


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read and validate an experiment file.

    `${NAME}` in a string is replaced by the environment variable; relative paths of corpora count from
    the working folder. Top-level keys that begin with `x-` are ignored (a place for YAML anchors).

    Args:
        path: YAML file.
        overrides: `path.to.field=value` each, the value in YAML.

    Raises:
        InputError: unreadable, unknown or wrong fields: each with its path and the value given.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no experiment file {path}") from error
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(document, dict):
        raise InputError(
            f"{path} holds {type(document).__name__}, expected fields such as name, tasks"
        )
    for override in overrides:
        _override(document, override)
    document = {k: v for k, v in document.items() if not str(k).startswith("x-")}
    try:
        return Experiment.model_validate(_expanded(document, "$"))
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (given: {e['input']!r:.100})"
            for e in error.errors()
        ]
        raise InputError(
            f"{path} has {len(lines)} wrong field(s):\n  " + "\n  ".join(lines)
        ) from error


def _override(document: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise InputError(f"--set {override!r} is not of the form path.to.field=value")
    at: Any = document
    parts, seen = dotted.split("."), list[str]()
    while len(parts) > 1:
        # Names of tasks and methods may hold dots: the longest name that exists is meant.
        lengths = range(len(parts) - 1, 0, -1)
        n = next((n for n in lengths if isinstance(at, dict) and ".".join(parts[:n]) in at), 1)
        name, parts = ".".join(parts[:n]), parts[n:]
        seen.append(name)
        at = at.setdefault(name, {}) if isinstance(at, dict) else at
        if not isinstance(at, dict):
            where = ".".join(seen)
            raise InputError(
                f"--set {override!r}: {where} is {at!r:.60}, which has no field {parts[0]!r}"
            )
    last = parts[0]
    try:
        at[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {override!r}: {text!r} is not a YAML value ({error})") from error


def _expanded(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {k: _expanded(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_expanded(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise InputError(f"{where} needs the environment variable {name}, which is not set")
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", lookup, value)
