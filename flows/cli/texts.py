"""`extract` and `embed`: a file of texts in, features or embeddings out; no experiment, no server."""

from pathlib import Path
from typing import Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    PluginsFlag,
    WaitFlag,
    console,
    emit,
    existing_home,
    home_folder,
    load_plugins,
    say_cut,
    say_path,
    seconds_since_start,
)
from permafrost.flows.imports import kept_imports
from permafrost.stages.bounds import MAX_TEXTS
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

TextsArgument = Annotated[
    str,
    typer.Argument(
        help="parquet, csv, tsv, jsonl, json or txt file (FILE::COLUMN for a column without a usual name), "
        "or hf:dataset/config:split:column.",
        show_default=False,
    ),
]
RecipeFlag = Annotated[str, typer.Option(help="NAME or NAME:key=value,...")]
DtypeFlag = Annotated[
    str | None,
    typer.Option(
        help="Compute dtype: float32 (default), bfloat16 or float16; storage follows if given."
    ),
]
StoreDtypeFlag = Annotated[str | None, typer.Option(help="Storage dtype; float16 by default.")]
MaxLengthFlag = Annotated[
    int | None, typer.Option(min=1, help="Tokens per text, special ones included.")
]
RevisionFlag = Annotated[str, typer.Option(help="Branch, tag or commit of a hub backbone.")]
DeviceFlag = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
TooLongFlag = Annotated[
    str, typer.Option(help="Texts longer than max_length: cut (and count), or refuse.")
]
BatchFlag = Annotated[int, typer.Option(min=1, max=MAX_TEXTS, help="Padded tokens per batch.")]
DelimiterFlag = Annotated[
    str | None, typer.Option(help="Between the fields of csv and tsv; a comma and a tab.")
]
EncodingFlag = Annotated[
    str, typer.Option(help="Of a file of text: utf-8, latin-1, cp1252, utf-16, ...")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(extract)
    app.command()(embed)


def extract(
    texts: TextsArgument,
    backbone: Annotated[str, typer.Option(help="Alias (minilm), folder or hub id.")],
    capture: Annotated[
        str,
        typer.Option(help='e.g. "hidden=all@tokens,values=4-6,attention_rows=all,hidden=6@mean"'),
    ],
    recipe: RecipeFlag = "plain",
    dtype: DtypeFlag = None,
    store_dtype: StoreDtypeFlag = None,
    codec: Annotated[str, typer.Option(help="none or zstd (new stores only).")] = "none",
    max_length: MaxLengthFlag = None,
    revision: RevisionFlag = "main",
    device: DeviceFlag = "auto",
    batch_tokens: BatchFlag = 8192,
    too_long: TooLongFlag = "cut",
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = "utf-8",
    wait: WaitFlag = False,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Fill the feature store with what is missing for these texts; an ensemble fills one per prompt."""
    from permafrost.flows.engine.progress import Display, NodeProgress
    from permafrost.storage.replica import public_name

    with kept_imports():
        from permafrost.flows.texts.extraction import extract_texts
        from permafrost.stages.corpus.texts import read_rows

    load_plugins(plugins)
    root = home_folder(home)
    separator, coding = text_format(delimiter, encoding)
    rows = read_rows(texts, delimiter=separator, encoding=coding).texts
    config = _config(
        backbone=backbone,
        revision=revision,
        recipe=recipe,
        capture=capture,
        dtype=dtype,
        store_dtype=store_dtype,
        codec=codec,
        max_length=max_length,
    )
    runtime = extract_runtime(device, batch_tokens, too_long, wait)
    with Display(console) as display:
        reports = extract_texts(config, rows, root, runtime, lambda x: NodeProgress(display, x))
    stores = [
        {"store_id": r.store.store_id, "path": public_name(r.store.zarr_path)} for r in reports
    ]
    n_cells, n_tokens = sum(r.n_cells for r in reports), sum(r.n_tokens for r in reports)
    n_truncated = max(r.n_truncated for r in reports)
    seconds = seconds_since_start()
    if json:
        emit(
            {
                # The first store; there are more only for an ensemble of prompts.
                **stores[0],
                "stores": stores,
                "n_texts": len(rows),
                "n_tokens_computed": n_tokens,
                "n_cells_computed": n_cells,
                "n_truncated": n_truncated,
                "seconds": round(seconds, 3),
            }
        )
        return
    what = f"computed {n_cells} cells ({n_tokens:,} tokens)" if n_cells else "nothing was missing"
    console.print(f"{len(rows):,} texts: {what} in {seconds:.1f} s", highlight=False)
    say_cut(n_truncated)
    if split_from := [r.split_from for r in reports if r.split_from is not None]:
        console.print(
            f"batches from {min(split_from):,} padded tokens on ran out of memory and were split; a smaller "
            "--batch-tokens tries none in vain",
            highlight=False,
        )
    for store in stores:
        say_path(store["path"])


def _graphs(spec: str | None, texts: str):
    """The graphs that --graphs describes, and the table that the texts are read from."""
    if spec is None:
        return None, None
    from permafrost.flows.experiment_files.yaml_reader import read_yaml
    from permafrost.stages.corpus.texts import table_of
    from permafrost.stages.encoder.graph_text import graphs_config

    is_file = not spec.lstrip().startswith("{")
    if is_file and not Path(spec).is_file():
        raise InputError(
            f"--graphs {quoted(spec)} is no file; give a YAML file, or '{{kind: tables, nodes: nodes.csv, "
            "edges: edges.csv}'"
        )
    content = Path(spec).read_bytes().decode(errors="replace") if is_file else spec
    fields = read_yaml(content, spec if is_file else "--graphs")
    if not isinstance(fields, dict):
        raise InputError(
            f"--graphs {quoted(spec)} holds {quoted(fields)}, expected fields such as 'kind: tables'"
        )
    return graphs_config(fields), table_of(texts)


def text_format(delimiter: str | None, encoding: str) -> tuple[str | None, str]:
    """The delimiter and the encoding of these flags; raises InputError where one cannot be used."""
    from permafrost.stages.corpus.text_format import checked_delimiter, encoding_name

    try:
        checked = None if delimiter is None else checked_delimiter(delimiter.replace("\\t", "\t"))
        return checked, encoding_name(encoding)
    except ValueError as error:
        raise InputError(str(error)) from error


def extract_runtime(device: str, batch_tokens: int, too_long: str, wait: bool):
    """What the flags say of how to extract; raises InputError for an unknown --too-long or --device."""
    from permafrost.stages.extraction.device import require_known_device
    from permafrost.stages.extraction.target import ExtractRuntime

    require_known_device(device)
    if too_long not in ("cut", "refuse"):
        raise InputError(f"--too-long {quoted(too_long)} is unknown; there are cut and refuse")
    return ExtractRuntime(
        device=device,
        batch_tokens=batch_tokens,
        too_long=too_long,
        busy="wait" if wait else "end",
    )


def _config(
    *,
    backbone: str,
    revision: str,
    recipe: str,
    capture: str,
    dtype: str | None,
    store_dtype: str | None,
    codec: str,
    max_length: int | None,
):
    from pydantic import ValidationError

    from permafrost.stages.extraction.capture import parse_capture
    from permafrost.stages.extraction.files import ALIASES
    from permafrost.stages.extraction.recipes.parse import parse_recipe
    from permafrost.stages.extraction.target import ExtractConfig
    from permafrost.stages.wrong_fields import wrong_fields

    if revision != "main" and (backbone in ALIASES or Path(backbone).is_dir()):
        raise InputError(
            f"--revision {revision} is of a hub id, and {backbone} is "
            f"{'a package' if backbone in ALIASES else 'a folder'}; leave it out"
        )
    parsed = {"recipe": parse_recipe(recipe), "capture": parse_capture(capture)}
    fields = {
        "backbone": {
            "source": backbone,
            "revision": revision,
            "dtype": "float32" if dtype is None else dtype,
            "max_length": max_length,
        },
        **parsed,
        "store_dtype": next((d for d in (store_dtype, dtype) if d is not None), "float16"),
        "codec": codec,
    }
    try:
        return ExtractConfig.model_validate(fields)
    except ValidationError as error:
        raise InputError(wrong_fields(error, ExtractConfig, fields, "; ")) from error


_OF_A_HEAD = (
    "method",
    "layers",
    "of",
    "combine",
    "dev",
    "recipe",
    "dtype",
    "store_dtype",
    "max_length",
    "revision",
)
"""Parameters of `embed` that a trained head has settled."""


def _is_given(context: typer.Context, name: str) -> bool:
    return getattr(context.get_parameter_source(name), "name", "DEFAULT") != "DEFAULT"


def _require_settled(context: typer.Context, head: str) -> None:
    """Raises: InputError: flags were given that say what the head says itself."""
    # Each has a default or none, and is wrong also where it repeats its default.
    given = [f"--{name.replace('_', '-')}" for name in _OF_A_HEAD if _is_given(context, name)]
    if given:
        has, them = ("has", "it") if len(given) == 1 else ("have", "them")
        raise InputError(
            f"{', '.join(given)} {has} no use with --head {head}: how texts are read, and what is made of "
            f"which layers, was settled when the head was trained; leave {them} out"
        )


def embed(
    context: typer.Context,
    texts: TextsArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Parquet file to write.", show_default=False)
    ],
    backbone: Annotated[
        str | None,
        typer.Option(help="Alias, folder or hub id; with --head: where it is now, if it moved."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="first, mean, max or weighted_mean over the recipe's span; last (token of the input); hs, "
            "va, wva or aligned_wva of Value Aggregation."
        ),
    ] = "mean",
    head: Annotated[
        str | None,
        typer.Option(
            help="Artifact of a trained head (fit/<key>; choose/<key> of a grid), of one trained with its "
            "backbone, or of a graph-text model (both finetune/<key>), instead of --method; linear/<key> "
            "has the vectors that a linear classifier reads."
        ),
    ] = None,
    graphs: Annotated[
        str | None,
        typer.Option(
            help="Graphs of the texts, for a graph-text model: a YAML file, or its content, such as "
            "'{kind: tables, nodes: nodes.csv, edges: edges.csv}' (docs/graphs.md)."
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="all (blocks 1..L), half, last, final, 4-6,9, or, with --dev, auto or best. Default: last, "
            "and all for hs, va, wva, aligned_wva."
        ),
    ] = "default",
    of: Annotated[str, typer.Option(help="What is pooled: hidden or values.")] = "hidden",
    combine: Annotated[
        str, typer.Option(help="Layers and prompts of an ensemble: average or concatenate.")
    ] = "average",
    normalise: Annotated[str, typer.Option(help="none, or l2 for vectors of length 1.")] = "none",
    dev: Annotated[
        str | None,
        typer.Option(
            help="Graded pairs for --layers auto and best: a file with the columns text, text_pair and label "
            "(or sentence1, sentence2 and score, and other usual names)."
        ),
    ] = None,
    recipe: RecipeFlag = "plain",
    dtype: DtypeFlag = None,
    store_dtype: StoreDtypeFlag = None,
    max_length: MaxLengthFlag = None,
    revision: RevisionFlag = "main",
    device: DeviceFlag = "auto",
    batch_tokens: BatchFlag = 8192,
    too_long: TooLongFlag = "cut",
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column of an id per row, to be written beside it.")
    ] = None,
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = "utf-8",
    wait: WaitFlag = False,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Write one embedding per text, in input order, from cached features (extracted if missing)."""
    from permafrost.flows.engine.progress import Display, NodeProgress

    with kept_imports():
        from permafrost.flows.texts.embedding import (
            ByMethod,
            ExtractContext,
            embed_config,
            embed_texts,
            with_length,
        )
        from permafrost.flows.texts.trained import trained_model
        from permafrost.stages.corpus.text_format import TextFormat
        from permafrost.stages.corpus.texts import read_rows
        from permafrost.stages.embed.write import require_other_file

    load_plugins(plugins)
    separator, coding = text_format(delimiter, encoding)
    if head is not None:
        _require_settled(context, head)
        given, table = _graphs(graphs, texts)
        written = TextFormat(coding, separator)
        model = trained_model(existing_home(home), head, backbone, given, table, written)
        how = with_length(model, normalise)
    elif graphs is not None:
        raise InputError(
            "--graphs is read by graph-text models, and none was named; add --head finetune/<key>, or leave "
            "--graphs out"
        )
    elif backbone is not None:
        config = embed_config(
            method=method, layers=layers, of=of, combine=combine, normalise=normalise
        )
        if _is_given(context, "of") and config.what != of:
            raise InputError(
                f"--of {of} has no use with --method {method}, which reads {config.what}; leave it out"
            )
        extraction = _config(
            backbone=backbone,
            revision=revision,
            recipe=recipe,
            # What is captured follows from the method.
            capture="hidden=all@tokens",
            dtype=dtype,
            store_dtype=store_dtype,
            codec="none",
            max_length=max_length,
        )
        how = ByMethod(extraction, config, dev)
    else:
        raise InputError(
            "give --backbone (with --method), or --head with the artifact of a trained head"
        )
    if output.suffix.lower() not in ("", ".parquet", ".pq"):
        raise InputError(
            f"embed writes Parquet, and {output} ends in {quoted(output.suffix)}; name a file that ends in "
            ".parquet, which pandas, Polars and DuckDB read"
        )
    for read in (texts, *(() if dev is None else (dev,))):
        require_other_file(output, Path(read))
    root = home_folder(home)
    runtime = extract_runtime(device, batch_tokens, too_long, wait)
    rows = read_rows(texts, ids=id_column, delimiter=separator, encoding=coding)
    ids = None if id_column is None else rows.ids
    with Display(console) as display:
        where = ExtractContext(root, runtime, lambda label: NodeProgress(display, label))
        done = embed_texts(how, rows.texts, output, where, ids)
    if json:
        emit(done)
    else:
        console.print(
            f"{done['n_texts']:,} texts x {done['width']} from {', '.join(dict.fromkeys(done['arrays']))} "
            f"({done['n_tokens_computed']:,} tokens computed)",
            highlight=False,
        )
        say_cut(done["n_truncated"])
        if dev is not None:
            console.print(
                f"layers chosen on {dev}: {', '.join(map(str, done['layers']))}",
                highlight=False,
                soft_wrap=True,
            )
        say_path(output)
