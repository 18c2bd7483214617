"""Permafrost: a frozen backbone runs once over a corpus; everything after it works from that cache.

    import permafrost

    permafrost.plan("experiments/demo.yaml")             # what would run, and why
    result = permafrost.run("experiments/demo.yaml")     # .report is the page, .results() its numbers
    home = permafrost.open()                             # what is stored
    vectors = permafrost.encode(["A text"], backbone="minilm", method="mean")
    found = permafrost.predict(["A text"], head="fit/3f2a", home=home)    # .names, .probabilities

Importing this loads nothing heavy; each function imports what it needs when it is called.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Float32

    from permafrost.flows.data_lookup import MissingData
    from permafrost.flows.home import Home
    from permafrost.flows.plan import Plan
    from permafrost.flows.running import PipelineResult
    from permafrost.stages.encoder import PredictedClasses, PredictedScores, load_exported
    from permafrost.stages.encoder.sentence_transformers_module import FrozenBackboneHead
    from permafrost.stages.graphs.from_data import graphs_from_data
    from permafrost.stages.mteb_evaluation.python_encoder import mteb_encoder
    from permafrost.storage.artifacts import ArtifactRef
    from permafrost.storage.errors import (
        ChangedError,
        CorruptDataError,
        DiskFullError,
        HubUnreachableError,
        IdentityMismatchError,
        InputError,
        NotFoundError,
        ObjectStoreError,
        OverflowRangeError,
        PermafrostError,
        RemovedError,
        StoreBusyError,
        UnreadableError,
    )

K = TypeVar("K")

__all__ = [
    "ChangedError",
    "CorruptDataError",
    "DiskFullError",
    "FrozenBackboneHead",
    "Home",
    "HubUnreachableError",
    "IdentityMismatchError",
    "InputError",
    "NotFoundError",
    "ObjectStoreError",
    "OverflowRangeError",
    "PermafrostError",
    "PipelineResult",
    "Plan",
    "PredictedClasses",
    "PredictedScores",
    "RemovedError",
    "StoreBusyError",
    "UnreadableError",
    "encode",
    "graphs_from_data",
    "load_exported",
    "mteb_encoder",
    "open",
    "plan",
    "predict",
    "register",
    "run",
]

_DEFINED_IN = {
    "FrozenBackboneHead": "permafrost.stages.encoder.sentence_transformers_module",
    "Home": "permafrost.flows.home",
    "PipelineResult": "permafrost.flows.running",
    "Plan": "permafrost.flows.plan",
    "PredictedClasses": "permafrost.stages.encoder",
    "PredictedScores": "permafrost.stages.encoder",
    "graphs_from_data": "permafrost.stages.graphs.from_data",
    "load_exported": "permafrost.stages.encoder",
    "mteb_encoder": "permafrost.stages.mteb_evaluation.python_encoder",
}
"""Names that are imported when they are asked for; the errors are in storage.errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_DEFINED_IN.get(name, "permafrost.storage.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


def open(home: "str | PathLike[str] | Home | None" = None) -> "Home":
    """A home: its feature stores, artifacts and runs, and encoders and readers of what is there.

    Args:
        home: a folder (`~` is the user's), or the URL of a home on an object store. If not given, the one
            that the environment variable PERMAFROST_HOME names, as on the command line, and `.permafrost` in
            the working folder if it names none. One that is not there is empty; the first run makes it.

    Raises:
        InputError: a file, or a URL that cannot be used.
    """
    from permafrost.flows.home import Home, open_home
    from permafrost.storage.paths import default_home
    from permafrost.storage.progress import SilentProgress

    return Home(open_home(default_home() if home is None else home, SilentProgress()))


def run(
    experiment: "str | PathLike[str] | Mapping[str, Any]",
    *,
    home: "str | PathLike[str] | Home | None" = None,
    engine: str | None = None,
    overrides: Sequence[str] | None = (),
) -> "PipelineResult":
    """Run an experiment; what is published in the home already is reused.

    Args:
        experiment: a YAML file, or a mapping with the same fields. Relative paths in it count from the
            working folder.
        home: where features and artifacts are kept; if not given, that of PERMAFROST_HOME, see `open`.
        engine: what runs the nodes: `serial`, one after the other in this process; `prefect`, each node a
            task run, with the server that is configured or one of its own; `dask`, the same in worker
            processes of this machine; `dask=tcp://host:8786`, in those of a Dask scheduler. If not given,
            `runtime.engine` of the experiment, and `serial` if that names none.
        overrides: `path.to.field=value` each, the value in YAML.

    Raises:
        InputError: the experiment or something that it names is wrong; nothing has run.
        PermafrostError: nodes failed; everything that does not need them is finished and published.
    """
    return _front().run(experiment, home, engine, overrides)


def plan(
    experiment: "str | PathLike[str] | Mapping[str, Any]",
    *,
    home: "str | PathLike[str] | Home | None" = None,
    overrides: Sequence[str] | None = (),
    missing_data: "MissingData" = "refuse",
) -> "Plan":
    """What a run would compute and why, its tokens, bytes and time; writes nothing in the home.

    Args:
        experiment: as for `run`.
        home: where results are looked for; if not given, that of PERMAFROST_HOME, see `open`.
        overrides: `path.to.field=value` each, the value in YAML.
        missing_data: where data of tasks are not on this machine: `refuse`, or `allow`, which tells what can
            be told without them.

    Raises:
        InputError: what a run would refuse before it starts.
    """
    return _front().plan(experiment, home, overrides, missing_data)


def encode(
    texts: Iterable[str],
    *,
    backbone: "str | PathLike[str] | Mapping[str, Any] | None" = None,
    method: str | Mapping[str, Any] | None = None,
    head: "str | ArtifactRef | None" = None,
    graphs: "Sequence[Sequence[Sequence[str]] | None] | Mapping[str, Any] | None" = None,
    home: "str | PathLike[str] | Home | None" = None,
    recipe: str | None = None,
    store_dtype: str | None = None,
    device: "str | torch.device | None" = "auto",
) -> "Float32[np.ndarray, 'n d']":
    """One vector per text, in order, `[n_texts, d]` float32; equal texts are computed once.

    With a home, features are taken from its stores, and what is missing is computed and stored there.
    Without one, nothing is kept. The vectors are the same, but for the noise of other batches.

    Args:
        texts: any number; a single text goes into a list.
        backbone: an alias (`minilm`), a folder, a Hugging Face id, or a mapping with the fields of
            `backbone` in an experiment. With `head`: where the backbone is now, if it moved.
        method: a method without training by its name (`mean`, `last`, `wva`, ...), or a mapping with the
            fields of `EmbedConfig` (`{"method": "mean", "layers": "4-6"}`).
        head: a trained head of the home instead of a method: `fit/<key>`, or the beginning of a key; one
            that was trained with its backbone, or a graph-text model, both `finetune/<key>`. Of a linear
            classifier, `linear/<key>`, the vectors that it reads.
        graphs: for a graph-text model, the triples (head, relation, tail) of the graph of each text, None for
            a text without; or how texts are linked (`{"kind": "linked", "knowledge": {...}}`).
        home: see `open`; a head needs one.
        recipe: how a text becomes input, as on the command line (`prompt_eol:spelling=plain`); `plain` if not
            given. A head has its own.
        store_dtype: to which features are rounded, and in which they are stored: `float16`, `bfloat16` or
            `float32`. If not given, `dtype` of `backbone` where that is given, else `float16`. A head has its
            own.
        device: `auto` or None (the first GPU, else the CPU), a torch device, or its name.

    Raises:
        InputError: arguments that do not go together, an unknown method or layer, an empty text, or a graph
            with a relation that the model does not know.
        NotFoundError: no such head.
        IdentityMismatchError: another backbone than the head was trained on; names both digests.
        OverflowRangeError: an activation is beyond the range of `store_dtype`.
    """
    return _front().encode(texts, backbone, method, head, home, recipe, device, graphs, store_dtype)


def predict(
    texts: Iterable[str],
    text_pairs: Iterable[str] | None = None,
    *,
    head: "str | ArtifactRef",
    home: "str | PathLike[str] | Home",
    backbone: "str | PathLike[str] | None" = None,
    device: "str | torch.device | None" = "auto",
) -> "PredictedClasses | PredictedScores":
    """The answers of a trained head, in order: classes with their probabilities, or scores of pairs.

    They are those that the head was scored with. Features are taken from the home's stores, and what is
    missing is computed and stored there; for a head that was trained with its backbone nothing is stored.

    Args:
        texts: any number; of pairs the first ones.
        text_pairs: the second texts, for a head that was trained on pairs.
        head: `fit/<key>`, or the beginning of a key; one that was trained with its backbone,
            `finetune/<key>`; or a linear classifier, `linear/<key>`.
        home: where it is, see `open`. For an exported folder: `load_exported(folder).predict(texts)`.
        backbone: where the backbone is now, if it moved.
        device: `auto` or None (the first GPU, else the CPU), a torch device, or its name.

    Raises:
        InputError: the head has no classes and no scores, single texts for a head on pairs or the reverse, or
            a blank text.
        NotFoundError: no such head.
        IdentityMismatchError: another backbone than the head was trained on; names both digests.
    """
    return _front().predict(texts, text_pairs, head, home, backbone, device)


def register(kind: type[K]) -> type[K]:
    """Add a kind of head, convolution, corpus, ... for the experiments of this process.

    For a class in a module that can be imported; `plugins: [my_head.py]` in an experiment does the same for a
    file. Works as a decorator. Registered again after an edit, the new class counts.

    Args:
        kind: a subclass of `Head`, `Conv`, ... with its name: `kind: Literal["my_head"] = "my_head"`.

    Raises:
        InputError: no kind, one that lacks a method, or one that is defined in a notebook, a script or a
            function, where neither a key nor another process finds its code.
    """
    from permafrost.stages import kinds, plugins
    from permafrost.storage.errors import InputError
    from permafrost.storage.quoting import quoted

    if not isinstance(kind, type) or kinds.kind_name(kind) is None:
        raise InputError(
            f"{quoted(kind)} is no kind; register a class whose field 'kind' is its name, for example "
            'kind: Literal["my_head"] = "my_head"'
        )
    kinds.require_written(kind)
    plugins.register(kind)
    return kind


def _front():
    """What does the work, imported once its libraries have been told to be quiet and private, and how their
    threads wait."""
    from permafrost.flows.quiet import set_quiet_defaults
    from permafrost.flows.threads import let_waiting_threads_sleep

    set_quiet_defaults()
    let_waiting_threads_sleep()
    from permafrost.flows import front

    return front
