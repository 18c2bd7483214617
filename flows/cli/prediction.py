"""`predict`: a file of texts in, the answers of a trained head out."""

from pathlib import Path
from typing import Annotated

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    MovedBackboneFlag,
    PluginsFlag,
    WaitFlag,
    console,
    emit,
    existing_home,
    load_plugins,
    say_cut,
    say_path,
)
from permafrost.flows.cli.texts import (
    BatchFlag,
    DelimiterFlag,
    DeviceFlag,
    EncodingFlag,
    TextsArgument,
    TooLongFlag,
    extract_runtime,
    text_format,
)
from permafrost.flows.imports import kept_imports


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
    delimiter: DelimiterFlag = None,
    encoding: EncodingFlag = "utf-8",
    backbone: MovedBackboneFlag = None,
    device: DeviceFlag = "auto",
    batch_tokens: BatchFlag = 8192,
    too_long: TooLongFlag = "cut",
    wait: WaitFlag = False,
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Write the classes and probabilities, or the scores, that a trained head gives texts or pairs."""
    from permafrost.flows.engine.progress import Display, NodeProgress

    with kept_imports():
        from permafrost.flows.texts.embedding import ExtractContext
        from permafrost.flows.texts.predicting import predict_rows
        from permafrost.stages.corpus.texts import read_rows
        from permafrost.stages.embed.write import require_other_file
        from permafrost.stages.encoder.predictions_file import require_predictions_place

    load_plugins(plugins)
    require_predictions_place(output)
    require_other_file(output, Path(texts))
    root = existing_home(home)
    runtime = extract_runtime(device, batch_tokens, too_long, wait)
    separator, coding = text_format(delimiter, encoding)
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
    say_cut(done["n_truncated"])
    say_path(output)
