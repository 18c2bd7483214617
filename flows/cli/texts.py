"""`extract` and `embed`: a file of texts in, features or embeddings out; no experiment, no server."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.board import Board, StageProgress
from flows.cli.common import DEFAULT_HOME, HomeFlag, JsonFlag, console, emit, home_folder
from storage.errors import InputError

TextsArgument = Annotated[
    str,
    typer.Argument(
        help="parquet, csv, jsonl or txt file (FILE::COLUMN for a column not called 'text'), or "
        "hf:dataset/config:split:column.",
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
BatchFlag = Annotated[int, typer.Option(min=1, help="Padded tokens per batch.")]


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
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Fill the feature store with what is missing for these texts."""
    started = time.monotonic()
    report, n_texts = _extract(
        texts,
        home=home,
        device=device,
        batch_tokens=batch_tokens,
        backbone=backbone,
        revision=revision,
        recipe=recipe,
        capture=capture,
        dtype=dtype,
        store_dtype=store_dtype,
        codec=codec,
        max_length=max_length,
    )
    seconds = time.monotonic() - started
    value = {
        "store_id": report.store.store_id,
        "path": str(report.store.zarr_path),
        "n_texts": n_texts,
        "n_tokens_computed": report.n_tokens,
        "n_cells_computed": report.n_cells,
        "n_truncated": report.n_truncated,
        "seconds": round(seconds, 3),
    }
    if json:
        emit(value)
        return
    what = (
        f"computed {report.n_cells} cells ({report.n_tokens:,} tokens)"
        if report.n_cells
        else "nothing was missing"
    )
    console.print(f"{n_texts:,} texts: {what} in {seconds:.1f} s", highlight=False)
    if report.n_truncated:
        console.print(
            f"{report.n_truncated:,} texts are longer than max_length and were cut", highlight=False
        )
    typer.echo(report.store.zarr_path)


def _extract(texts: str, *, home: str, device: str, batch_tokens: int, **fields: Any):
    from stages.corpus.texts import read_texts
    from stages.extraction.extract import extract as fill_store
    from stages.extraction.target import ExtractRuntime, resolve_target
    from storage.keys import text_digest

    root = home_folder(home)
    rows = read_texts(texts)
    target = resolve_target(_config(**fields))
    by_digest = {text_digest(t): t for t in rows}
    runtime = ExtractRuntime(device=device, batch_tokens=batch_tokens)
    with Board(console) as board:
        report = fill_store(
            target,
            root,
            list(by_digest.values()),
            list(by_digest),
            runtime,
            StageProgress(board, f"extract {len(by_digest):,} texts"),
        )
    return report, len(rows)


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

    from stages.extraction.capture import parse_capture
    from stages.extraction.recipe import parse_recipe
    from stages.extraction.target import ExtractConfig

    parsed = {"recipe": parse_recipe(recipe), "capture": parse_capture(capture)}
    try:
        return ExtractConfig.model_validate(
            {
                "backbone": {
                    "source": backbone,
                    "revision": revision,
                    "dtype": dtype or "float32",
                    "max_length": max_length,
                },
                **parsed,
                "store_dtype": store_dtype or dtype or "float16",
                "codec": codec,
            }
        )
    except ValidationError as error:
        lines = [f"{e['loc'][-1]}: {e['msg']} (given: {e['input']!r})" for e in error.errors()]
        raise InputError("; ".join(lines)) from error


def embed(
    texts: TextsArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Parquet file to write.", show_default=False)
    ],
    backbone: Annotated[
        str | None,
        typer.Option(help="Alias, folder or hub id; with --head: where it is now, if it moved."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="first, last, mean or max over the recipe's span.")
    ] = "mean",
    head: Annotated[
        str | None,
        typer.Option(help="Artifact of a trained head (fit/<key>), instead of --method."),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            help="Hidden states to pool: last, all, half, final, 4-6,9; several are averaged."
        ),
    ] = "last",
    recipe: RecipeFlag = "plain",
    dtype: DtypeFlag = None,
    store_dtype: StoreDtypeFlag = None,
    max_length: MaxLengthFlag = None,
    revision: RevisionFlag = "main",
    device: DeviceFlag = "auto",
    batch_tokens: BatchFlag = 8192,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Write one embedding per text, in input order, from cached features (extracted if missing)."""
    from flows.embedding import EmbedRequest, embed_texts
    from stages.corpus.texts import read_texts

    if head is None and backbone is None:
        raise InputError(
            "give --backbone (with --method), or --head with the artifact of a trained head"
        )
    root = home_folder(home)
    config = None
    if head is None:
        assert backbone is not None
        config = _config(
            backbone=backbone,
            revision=revision,
            recipe=recipe,
            capture=f"hidden={'all' if layers == 'last' else layers}@tokens",
            dtype=dtype,
            store_dtype=store_dtype,
            codec="none",
            max_length=max_length,
        )
    request = EmbedRequest(config, method, layers, head, backbone, device, batch_tokens)
    with Board(console) as board:
        done = embed_texts(
            request, read_texts(texts), root, output, lambda label: StageProgress(board, label)
        )
    if json:
        emit(done)
    else:
        console.print(
            f"{done['n_texts']:,} texts x {done['width']} from {', '.join(done['arrays'])} "
            f"({done['n_tokens_computed']:,} tokens computed)",
            highlight=False,
        )
        typer.echo(output)
