"""The functions behind `import permafrost`: running or planning an experiment, and encoding texts."""

import asyncio
import atexit
import contextvars
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from permafrost.flows.data_lookup import MissingData
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.engine_choice import Serial, parse_engine
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.experiment_files.plain_document import plain_document
from permafrost.flows.home import Home, home_url, open_home
from permafrost.flows.plan import Plan
from permafrost.flows.plan_experiment import plan_experiment
from permafrost.flows.running import (
    PipelineResult,
    checked,
    reused,
    run_serially,
)
from permafrost.flows.stopping import STOP, Stopped
from permafrost.flows.terminal import Terminal
from permafrost.flows.texts.embedding import ByMethod, ExtractContext, How, vectors_of
from permafrost.flows.texts.predicting import answers_to
from permafrost.flows.texts.trained import trained_model
from permafrost.stages.corpus.given_texts import listed
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.encoder.graph_text import GraphsOfTexts
from permafrost.stages.encoder.load import method_encoder, require_nothing_fitted
from permafrost.stages.encoder.predicted import Predicted
from permafrost.stages.encoder.runtime import Device, runtime_on
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.recipes.parse import parse_recipe
from permafrost.stages.extraction.target import ExtractConfig
from permafrost.stages.plugins import look_anew
from permafrost.stages.wrong_fields import wrong_fields
from permafrost.storage.artifacts import ArtifactRef
from permafrost.storage.errors import InputError, PermafrostError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.paths import default_home
from permafrost.storage.progress import SilentProgress
from permafrost.storage.quoting import quoted

Config = TypeVar("Config", bound=BaseModel)
HomeName = str | PathLike[str] | Home
Source = Path | dict[str, Any]
"""An experiment as its file or its fields."""


def run(
    experiment: str | PathLike[str] | Mapping[str, Any],
    home: HomeName | None,
    engine: str | None,
    overrides: Sequence[str] | None,
) -> PipelineResult:
    """See `permafrost.run`."""
    source, folder, changed = _source(experiment), _opened(home), _overrides(overrides)
    if engine is None:
        engine = load_experiment(source, changed).runtime.engine or "serial"
    try:
        if parse_engine(engine) == Serial():
            return run_serially(source, folder, changed)
        return _run_on_prefect(source, folder, changed, engine)
    except KeyboardInterrupt:
        # Who interrupts a script waits for its end, and Python's last search for cycles among all that was
        # imported takes two seconds.
        atexit.register(gc.freeze)
        raise
    except Stopped as stop:
        if STOP.ends_the_process:
            raise
        raise PermafrostError(
            "this run was ended, as another one in this process was interrupted; run it again, it goes on "
            "from there"
        ) from stop


def _run_on_prefect(
    source: Source, folder: Path, overrides: list[str], engine: str
) -> PipelineResult:
    experiment = source if isinstance(source, dict) else str(source)
    home = home_url(folder)

    def work() -> PipelineResult:
        found = checked(experiment, home, overrides)
        if (result := reused(found)) is not None:
            return result
        # Imported here: Prefect takes a second, and a run that finds everything does without.
        from permafrost.flows.pipeline import run_checked

        return run_checked(found, experiment, home, overrides, engine)

    return _outside_event_loops(work)


def _outside_event_loops(work: Callable[[], PipelineResult]) -> PipelineResult:
    """Run `work` in a thread if an event loop is running, as in a notebook, where Prefect's functions would
    return coroutines."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(contextvars.copy_context().run, work)
        try:
            return run.result()
        except BaseException:
            # An interrupt comes to this thread, and not to the one that works.
            if not run.done():
                STOP.until(run)
            raise


def plan(
    experiment: str | PathLike[str] | Mapping[str, Any],
    home: HomeName | None,
    overrides: Sequence[str] | None,
    missing_data: MissingData,
) -> Plan:
    """See `permafrost.plan`."""
    return plan_experiment(_source(experiment), _overrides(overrides), _opened(home), missing_data)


def _source(experiment: str | PathLike[str] | Mapping[str, Any]) -> Source:
    if isinstance(experiment, Mapping):
        return plain_document(experiment, "the experiment")
    if experiment == "":
        raise InputError("the experiment is empty; give the path of a YAML file")
    if isinstance(experiment, str | PathLike):
        return Path(experiment).expanduser()
    raise InputError(
        f"the experiment is {quoted(experiment)}, of type {type(experiment).__name__}; give the path of a "
        "YAML file, or a mapping of its fields"
    )


def _overrides(overrides: Sequence[str] | None) -> list[str]:
    if overrides is None:
        return []
    if isinstance(overrides, str):
        raise InputError(
            f"overrides is the text {quoted(overrides)} where a list of them belongs; write [text]"
        )
    form = "overrides is a list of texts such as ['seeds=[0]']"
    if isinstance(overrides, Mapping) or not isinstance(overrides, Iterable):
        raise InputError(
            f"overrides is {quoted(overrides)}, of type {type(overrides).__name__}; {form}"
        )
    given = list(overrides)
    for i, one in enumerate(given):
        if not isinstance(one, str):
            raise InputError(
                f"overrides[{i}] is {quoted(one)}, of type {type(one).__name__}; {form}"
            )
    return given


def _opened(home: HomeName | None) -> Path:
    """The folder of a home, once no interrupted run of this process is left that would have us end too."""
    STOP.settle(
        lambda: Terminal(stderr=True, soft_wrap=True).print(
            "the run that was interrupted before is still ending; waiting for it"
        )
    )
    with Display(Terminal()) as display:
        return open_home(
            default_home() if home is None else home, NodeProgress(display, "pull the home")
        )


def encode(
    texts: Iterable[str],
    backbone: str | PathLike[str] | Mapping[str, Any] | None,
    method: str | Mapping[str, Any] | None,
    head: str | ArtifactRef | None,
    home: HomeName | None,
    recipe: str | None,
    device: Device,
    graphs: GraphsOfTexts = None,
    store_dtype: str | None = None,
) -> Vectors:
    """See `permafrost.encode`."""
    rows = listed(texts, "encode")
    if (method is None) == (head is None):
        given = "neither method nor head was" if method is None else "both method and head were"
        raise InputError(
            f"{given} given; write method='mean' (or another name) with backbone=, or head='fit/<key>' with "
            "home="
        )
    how: How
    if head is not None:
        settled = {"recipe": recipe, "store_dtype": store_dtype}
        how = _by_head(str(head), backbone, home, settled, graphs)
    elif graphs is not None:
        raise InputError(
            "graphs were given without a graph-text model; add head='finetune/<key>' with home=, or leave "
            "them out"
        )
    elif home is not None:
        how = _by_method(method, backbone, recipe, store_dtype)
    else:
        alone = _by_method(method, backbone, recipe, store_dtype)
        encoder = method_encoder(
            alone.config,
            alone.extract.backbone,
            alone.extract.recipe,
            store_dtype=alone.extract.store_dtype,
            device=device,
        )
        return encoder.encode(rows)
    assert home is not None, "a head without a home was refused"
    context = ExtractContext(_opened(home), runtime_on(device), lambda _: SilentProgress())
    return vectors_of(how, rows, context)


def predict(
    texts: Iterable[str],
    text_pairs: Iterable[str] | None,
    head: str | ArtifactRef,
    home: HomeName,
    backbone: str | PathLike[str] | None,
    device: Device,
) -> Predicted:
    """See `permafrost.predict`."""
    first = listed(texts, "predict")
    second = None if text_pairs is None else listed(text_pairs, "predict")
    where = None if backbone is None else fspath(backbone)
    context = ExtractContext(_opened(home), runtime_on(device), lambda _: SilentProgress())
    return answers_to(str(head), where, first, second, context).predicted


def _by_head(
    head: str,
    backbone: str | PathLike[str] | Mapping[str, Any] | None,
    home: HomeName | None,
    settled: Mapping[str, str | None],
    graphs: GraphsOfTexts,
) -> How:
    if home is None:
        raise InputError(
            f"the head {quoted(head)} is looked for in a home, and none was given; add home=, or load an "
            "exported folder with permafrost.load_exported"
        )
    for name, value in settled.items():
        if value is not None:
            raise InputError(
                f"{name} is {quoted(value)}, but a head reads what it was trained on; leave {name} out"
            )
    if isinstance(backbone, Mapping):
        raise InputError(
            f"backbone is {quoted(backbone)}, but a head has its own settings; give only where the "
            "backbone is now, or leave it out"
        )
    where = None if backbone is None else fspath(backbone)
    return trained_model(_opened(home), head, where, graphs)


def _by_method(
    method: str | Mapping[str, Any] | None,
    backbone: str | PathLike[str] | Mapping[str, Any] | None,
    recipe: str | None,
    store_dtype: str | None,
) -> ByMethod:
    look_anew()
    if backbone is None:
        raise InputError(
            f"the method {quoted(method)} needs a backbone, and none was given; add backbone= with an alias "
            "(minilm), a folder or a Hugging Face id"
        )
    fields = method if isinstance(method, Mapping) else {"method": method}
    where = backbone if isinstance(backbone, Mapping) else {"source": fspath(backbone)}
    runs = _validated(BackboneConfig, where, "backbone")
    extraction = ExtractConfig(
        backbone=runs,
        recipe=parse_recipe(recipe or "plain"),
        # What is captured follows from the method.
        capture=parse_capture("hidden=all@tokens"),
        store_dtype=_storage_dtype(store_dtype, runs),
    )
    config = _validated(EmbedConfig, fields, "method")
    require_nothing_fitted(config)
    return ByMethod(extraction, config, dev=None)


def _storage_dtype(given: str | None, backbone: BackboneConfig) -> FloatName:
    """As on the command line: what is computed in a dtype that was asked for is kept in it."""
    if given is None:
        return backbone.dtype if "dtype" in backbone.model_fields_set else "float16"
    for name in get_args(FloatName):
        if name == given:
            return name
    raise InputError(
        f"store_dtype is {quoted(given)}, which is unknown; there are {', '.join(get_args(FloatName))}"
    )


def _validated(config: type[Config], fields: Mapping[str, Any], what: str) -> Config:
    given = plain_document(fields, what)
    try:
        return config.model_validate(given)
    except ValidationError as error:
        raise InputError(f"{what}: {wrong_fields(error, config, given, '; ')}") from error
