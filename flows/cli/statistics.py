"""`statistics`: what the rows of a feature store look like, by array."""

from pathlib import Path
from typing import Annotated, Any

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    console,
    emit,
    existing_home,
    print_rows,
    say_path,
)
from permafrost.flows.cli.inspection import find_store
from permafrost.flows.engine_choice import Dask, parse_engine
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.array_names import named_arrays, patterns_of
from permafrost.storage.features.store import ALWAYS, FeatureStore
from permafrost.storage.quoting import quoted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(statistics)


def statistics(
    store: Annotated[str, typer.Argument(metavar="ID", help="Store id, or its beginning.")],
    arrays: Annotated[
        str, typer.Option(help="Names or patterns, with commas: hidden/3,'values/*'.")
    ] = "*",
    engine: Annotated[
        str, typer.Option(help="dask (processes of this machine) or dask=tcp://host:port.")
    ] = "dask",
    workers: Annotated[
        int, typer.Option(min=0, help="Processes; 0 for one per core that is free.")
    ] = 0,
    whitening: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the mean and the principal directions, scaled to variance 1, of each array: a "
            "safetensors file each."
        ),
    ] = None,
    components: Annotated[
        int | None, typer.Option(min=1, help="Directions in those files; all if not given.")
    ] = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Norms, cosines and variances of a feature store's rows, added up by Dask workers."""
    from permafrost.storage.replica import public_name

    if components is not None and whitening is None:
        raise InputError("--components is for --whitening FOLDER, which is not given")
    if whitening is not None and whitening.exists() and not whitening.is_dir():
        raise InputError(f"--whitening {whitening} is a file; give a folder")
    where = parse_engine(engine)
    match where:
        case Dask():
            pass
        case _:
            raise InputError(f"statistics are computed by Dask; --engine is {quoted(engine)}")
    root = existing_home(home)
    found = find_store(root, store)
    if found is None:
        raise NotFoundError(
            f"no feature store under {public_name(root)} has an id that begins with {quoted(store)}; "
            "'permafrost ls' lists them"
        )
    names = _named(found, arrays)
    # Imported here: it takes seconds, and no other command needs it.
    from permafrost.flows.context import RunContext, RunRuntime
    from permafrost.flows.engine.cluster import Cluster
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.flows.store_statistics import require_reachable, store_statistics
    from permafrost.stages.embed.config import WhiteningConfig

    require_reachable(where)
    runtime = RunRuntime(workers=workers)
    context = RunContext(root, runtime)
    whiten = None if whitening is None else WhiteningConfig(n_components=components)
    with (
        Display(console) as display,
        Cluster(where, runtime.choose_workers(), context, display) as cluster,
    ):
        progress = NodeProgress(display, f"statistics {found.store_id[:12]}")
        result = store_statistics(context.url, found.store_id, names, cluster, progress, whiten)
    if whitening is not None:
        whitening.mkdir(parents=True, exist_ok=True)
        for array, map_ in result.whitenings.items():
            map_.save(whitening / f"{array.replace('/', '_')}.safetensors")
    if json:
        emit(
            {
                "store": result.store_id,
                "n_segments": result.n_segments,
                "arrays": {
                    name: {"n_segments": result.cells[name], **vars(summary)}
                    for name, summary in result.arrays.items()
                },
            }
        )
        return
    _show(result)
    if whitening is not None:
        say_path(whitening)


def _named(store: FeatureStore, patterns: str) -> tuple[str, ...]:
    there = [a for a in store.declared() if a not in ALWAYS and store.spec(a).width is not None]
    if not (names := named_arrays(there, patterns_of(patterns), store.store_id)):
        raise InputError(
            f"--arrays {quoted(patterns)} names no array of the store {store.store_id[:12]}; there are "
            f"{', '.join(there) or 'none'}"
        )
    return names


_COLUMNS = (
    *("array", "n rows", "norm", "cosine", "rank", "first"),
    *("90 % in", "largest", "n not finite"),
)


def _show(result: Any) -> None:
    rows = [
        (
            name,
            f"{s.n_rows:,}",
            "" if s.norm is None else f"{s.norm:.3g} ± {s.norm_deviation:.2g}",
            _number(s.cosine, ".3f"),
            _number(s.effective_rank, ".1f"),
            _number(s.first_share, ".1%"),
            _number(s.components_90, ",d"),
            "" if s.largest is None else f"{s.largest:.3g} [{s.largest_column}]",
            f"{s.n_not_finite:,}",
        )
        for name, s in result.arrays.items()
    ]
    print_rows(f"Rows of the feature store {result.store_id[:12]}", _COLUMNS, rows)
    console.print(
        "norm: mean ± deviation. cosine: mean of all pairs of rows. rank: effective rank. first: share of "
        "the variance along the first principal direction; 90 % in: directions that hold so much of it. "
        "largest: absolute number [its column].",
        style="dim",
    )
    for name, n in result.cells.items():
        if n < result.n_segments:
            console.print(f"{name}: {n} of {result.n_segments} segments; the others lack it")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
