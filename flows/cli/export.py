"""`export` and `upgrade`: a trained head as a folder for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    MovedBackboneFlag,
    PluginsFlag,
    console,
    emit,
    existing_home,
    load_plugins,
    say_path,
    size,
)
from permafrost.flows.imports import kept_imports
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(export)
    app.command()(upgrade)


def export(
    artifact: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Artifact of a trained head (fit/<key>; choose/<key> of a grid), of a linear classifier "
            "(linear/<key>), or of a head trained with its backbone (finetune/<key>).",
            show_default=False,
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="Folder to write; not there yet, or empty.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The same as DIR.", show_default=False)
    ] = None,
    form: Annotated[
        Literal["auto", "plain", "module", "peft"],
        typer.Option(
            help="plain: sentence-transformers loads it alone; module: any head, Permafrost has to be "
            "installed; auto: plain where it gives the same vectors; peft: the adapters of a tuned backbone "
            "alone."
        ),
    ] = "auto",
    use: Annotated[
        Literal["vectors", "classifier"],
        typer.Option(
            "--as",
            help="What the folder is for; a classifier has the classes of the head, too (docs/predict.md).",
        ),
    ] = "vectors",
    backbone: MovedBackboneFlag = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    plugins: PluginsFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Write a trained head and its backbone as a folder that sentence-transformers loads."""
    folder = _folder(directory, output)
    # Imported here: torch takes seconds, and a wrong flag needs none of it.
    with kept_imports():
        from permafrost.stages.encoder.export import export_head

    load_plugins(plugins)
    done = export_head(existing_home(home), artifact, folder, form, backbone, device, use)
    if json:
        emit(
            {
                "output": str(folder),
                "as": use,
                "artifact": done.artifact,
                "form": done.form,
                "why_not_plain": done.why_not_plain,
                "difference": done.difference,
                "merge_difference": done.merge_difference,
                "peft_difference": done.peft_difference,
                "width": done.d_out,
                "bytes": done.n_bytes,
                "trained_in": done.trained_in,
            }
        )
        return
    say = f"{done.artifact}: {done.form} form, width {done.d_out}, {size(done.n_bytes)}"
    if done.difference is not None:
        say += f"; sentence-transformers differs by {done.difference:.1e}"
    if done.why_not_plain is not None:
        say += f"; needs Permafrost, since {done.why_not_plain}"
    if done.merge_difference is not None:
        say += (
            "; adapters are rounded to the backbone's half precision where they are merged, so that vectors "
            f"differ by {done.merge_difference:.1e} from those that were scored (--form peft keeps them, "
            "but for norms that were trained)"
        )
    if done.peft_difference is not None:
        say += (
            "; peft rounds the norms that were trained to the backbone's half precision where it loads them, "
            f"so that vectors differ by {done.peft_difference:.1e} from those that were scored"
        )
    if done.trained_in is not None:
        say += f"; trained on weights in {done.trained_in}, so load it with dtype=torch.{done.trained_in}"
    console.print(say, highlight=False, markup=False, soft_wrap=True)
    say_path(folder)


def _folder(directory: Path | None, output: Path | None) -> Path:
    """The folder that an argument or -o names.

    Raises:
        InputError: neither does, or they differ.
    """
    named = {path for path in (directory, output) if path is not None}
    if len(named) > 1:
        raise InputError(
            f"two folders to write are named, {quoted(str(directory))} and -o {quoted(str(output))}; give one"
        )
    if not named:
        raise InputError("no folder to write is named; give one: permafrost export ID DIR")
    return named.pop()


def upgrade(
    folder: Annotated[
        Path, typer.Argument(help="Folder that an earlier version exported.", show_default=False)
    ],
    json: JsonFlag = False,
) -> None:
    """Have an exported folder name its module as this version and later ones find it; vectors stay."""
    from permafrost.stages.encoder.upgrade import upgrade_exported

    done = upgrade_exported(folder)
    if json:
        emit({"folder": str(folder), "changed": list(done.changed)})
        return
    if done.changed:
        console.print(f"rewrote {' and '.join(done.changed)}")
    elif done.needs_permafrost:
        console.print("up to date; nothing was changed")
    else:
        console.print("plain form, which needs no Permafrost; nothing was changed")
    say_path(folder)
