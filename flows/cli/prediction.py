"""`predict`: a file of texts in, the answers of a trained head out."""

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
    load_plugins,
    say_path,
)
from permafrost.flows.cli.texts import (
    BatchFlag,
    DeviceFlag,
    TextsArgument,
    TooLongFlag,
    extract_runtime,
)
from permafrost.flows.engine.progress import Display, NodeProgress
from permafrost.flows.imports import kept_imports
from permafrost.storage.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(predict)


def predict(
    texts: TextsArgument,
    head: Annotated[
        str,
        typer.Option(
            help="Artifact of a trained head (fit/<key>; choose/<key> of a grid), of one trained with its "
            "backbone (finetune/<key>), or of a linear classifier (linear/<key>).",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="File to write: .parquet, .csv or .jsonl.", show_default=False
        ),
    ],
    text_pair: Annotated[
        str | None,
        typer.Option(help="Column of the second texts, for a head that was trained on pairs."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="Column of an id per row; the row's number, from 0, if not given."
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Between the fields of csv and tsv; a comma and a tab.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="Of a file of text: utf-8, latin-1, cp1252, utf-16, ...")
    ] = "utf-8",
    backbone: Annotated[
        str | None, typer.Option(help="Where the backbone is now, if it moved.")
    ] = None,
    device: DeviceFlag = "auto",
    batch_tokens: BatchFlag = 8192,
    too_long: TooLongFlag = "cut",
    wait: WaitFlag = False,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Write the classes and probabilities, or the scores, that a trained head gives texts or pairs."""
    with kept_imports():
        from permafrost.flows.embedding import ExtractContext
        from permafrost.flows.predicting import predict_rows
        from permafrost.stages.corpus.texts import read_rows
        from permafrost.stages.encoder import require_predictions_place

    load_plugins(plugins)
    require_predictions_place(output)
    root = existing_home(home)
    runtime = extract_runtime(device, batch_tokens, too_long, wait)
    separator, coding = _format(delimiter, encoding)
    rows = read_rows(texts, text_pair, id_column, delimiter=separator, encoding=coding)
    with Display(console) as display:
        context = ExtractContext(root, runtime, lambda label: NodeProgress(display, label))
        done = predict_rows(head, backbone, rows, output, context)
    if json:
        emit(done)
        return
    what = f"{len(done['classes'])} classes" if done["classes"] else "scores of pairs"
    console.print(
        f"{done['n_texts']:,} rows x {what} by {done['head']} ({done['n_tokens_computed']:,} tokens "
        "computed)",
        highlight=False,
        markup=False,
    )
    if done["n_truncated"]:
        console.print(
            f"{done['n_truncated']:,} texts are longer than max_length and were cut",
            highlight=False,
        )
    say_path(output)


def _format(delimiter: str | None, encoding: str) -> tuple[str | None, str]:
    from permafrost.stages.corpus.text_format import checked_delimiter, encoding_name

    try:
        checked = None if delimiter is None else checked_delimiter(delimiter.replace("\\t", "\t"))
        return checked, encoding_name(encoding)
    except ValueError as error:
        raise InputError(str(error)) from error
