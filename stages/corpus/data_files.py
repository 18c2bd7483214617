"""Resolving paths to files: by a name in a folder, by a pattern, or as a series of shards."""

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from permafrost.stages.corpus.text_format import PACKED
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_PLAIN = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".txt": "txt",
}
_FURTHER = {
    ".json": "json",
    **{f"{e}{PACKED}": f for e, f in (*_PLAIN.items(), (".json", "json")) if f != "parquet"},
}
"""Looked for only where there is no file of the others: a folder may hold `train.csv` beside `info.json`, or
beside `train.csv.gz`."""
FORMATS = {**_PLAIN, **_FURTHER}
"""Format by extension."""
_SHARD = re.compile(r"(?P<series>.*)-(?P<number>\d+)-of-(?P<total>\d+)")
_NUMBERED = re.compile(r"\d*$")


def data_files(path: Path) -> list[Path]:
    """The files that a path stands for, in the order of their names.

    A path is one file, a folder whose files form one series (`train-00000-of-00002`, `part-0`), or a pattern
    with `*`, `?` or `[...]`.

    Raises:
        InputError: a folder or pattern has no files, files of several formats, or (a folder) several series,
            or a shard is missing.
    """
    if path.is_dir():
        _refuse_saved(path)
        files = [(p, extension_of(p)) for p in _sorted(path.iterdir())]
        found = [p for p, extension in files if extension in _PLAIN]
        found = found or [p for p, extension in files if extension in _FURTHER]
        if not found:
            raise InputError(
                f"{path} is a folder without files of {', '.join(FORMATS)}; name a file in it (a datasets "
                "folder goes with kind 'hub')"
            )
        _require_one_series(found, path)
    elif not path.exists() and glob.has_magic(str(path)):
        found = files_of_pattern(path)
        if not found:
            raise InputError(
                f"no file fits the pattern {path}; relative paths count from the working folder {Path.cwd()}"
            )
    else:
        return [path]
    if len(formats := sorted(set(map(extension_of, found)))) > 1:
        raise InputError(
            f"{path} stands for files of several formats ({', '.join(map(quoted, formats))}); write a "
            f"pattern that fits those of one, such as *{formats[0]}"
        )
    return found


def _refuse_saved(folder: Path) -> None:
    """Raises: InputError: `datasets` wrote the folder with `save_to_disk`."""
    of_splits = (folder / "dataset_dict.json").is_file()
    if of_splits or all((folder / name).is_file() for name in ("state.json", "dataset_info.json")):
        split = "SPLIT" if of_splits else "train"
        raise InputError(
            f"{folder} was written by datasets' save_to_disk; use a task of kind 'hub' with 'path: {folder}' "
            f"and the splits in 'splits' (on the command line: hf:{folder}:{split})"
        )


def extension_of(path: Path) -> str:
    """Its extension in lower case, with that of its content where it is packed: `.csv.gz`."""
    extension = path.suffix.lower()
    return Path(path.stem).suffix.lower() + extension if extension == PACKED else extension


def _stem(path: Path) -> str:
    """Its name without the extension."""
    return path.name[: len(path.name) - len(extension_of(path))]


def files_of_pattern(pattern: Path) -> list[Path]:
    """The files that match a pattern, in the order of their names; folders in it may be patterns too."""
    if "\0" in str(pattern):
        return []
    return _sorted(map(Path, glob.glob(str(pattern))))  # noqa: PTH207 (Path.glob takes relative patterns only)


def shards_of(base: Path, extension: str) -> Path | None:
    """A pattern for the shards `BASE-00000-of-00002` and so on; None if there are none.

    Raises:
        InputError: a shard is missing.
    """
    found = files_of_pattern(Path(f"{glob.escape(str(base))}-*-of-*{extension}"))
    shards = [p for p in found if (m := _SHARD.fullmatch(_stem(p))) and m["series"] == base.name]
    if not shards:
        return None
    _require_all(shards, base.parent)
    total = _stem(shards[0]).rpartition("-")[2]
    return Path(f"{glob.escape(str(base))}-*-of-{total}{extension}")


def _require_one_series(found: Sequence[Path], folder: Path) -> None:
    series = {
        m["series"] if (m := _SHARD.fullmatch(_stem(p))) else _NUMBERED.sub("", _stem(p))
        for p in found
    }
    if len(series) > 1:
        names = [p.name for p in found]
        raise InputError(
            f"{folder} is a folder that holds {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}: "
            "which of them are meant? Name a file, or a pattern such as "
            f"{folder / ('*' + extension_of(found[0]))}"
        )
    _require_all([p for p in found if _SHARD.fullmatch(_stem(p))], folder)


def _require_all(shards: Sequence[Path], folder: Path) -> None:
    """Check that no shard of a series is missing."""
    numbers = [tuple(map(int, _stem(p).split("-")[-3::2])) for p in shards]
    for total in {total for _, total in numbers}:
        missing = sorted(set(range(total)) - {n for n, of in numbers if of == total})
        if missing or len(numbers) > total:
            what = (
                f"number {missing[0]} is missing"
                if missing
                else "there are shards of several series"
            )
            raise InputError(
                f"{folder} has {len(shards)} shards of {total} ({', '.join(p.name for p in shards[:3])}...): "
                f"{what}; add it, or write a pattern that takes what is meant"
            )


def _sorted(found: Iterable[Path]) -> list[Path]:
    return sorted(p for p in found if p.is_file())


TABLES = (".parquet", ".jsonl", ".csv", ".tsv")
"""Extensions of files with columns."""
_FURTHER_TABLES = tuple(extension for extension, kind in _FURTHER.items() if kind != "txt")
_LAYOUTS = (
    "{0}",
    "data/{0}",
    "{0}-00000-of-00001",
    "data/{0}-00000-of-00001",
    "{0}/{0}-00000-of-00001",
)
"""Where a folder may keep a file of this name: by itself, or laid out like a dataset on the hub."""
_SHARDED = ("{0}", "data/{0}", "{0}/{0}")
"""Where it may keep one in shards, `NAME-00000-of-00002` and so on."""


def find_file(
    folder: Path, names: Sequence[str], field: str, extensions: Sequence[str] = TABLES
) -> Path:
    """As `look_for`, but the file must exist.

    Raises:
        InputError: there is no such file, or there are several.
    """
    if (found := look_for(folder, names, field, extensions)) is not None:
        return found
    raise InputError(
        f"there is no file {folder / names[0]}{extensions[0]} (nor with {', '.join(extensions[1:])}"
        f"{''.join(f', nor {name}' for name in names[1:])}); {_listing(folder)}. Write '{field}: NAME' with "
        f"the one that is meant; relative paths count from the working folder {Path.cwd()}"
    )


def look_for(
    folder: Path, names: Sequence[str], field: str, extensions: Sequence[str] = TABLES
) -> Path | None:
    """The file in a folder with one of these names, given with or without extension; None if there is none.

    The first name with a file wins. A name may be a pattern (`data/test-*.parquet`); for a sharded file the
    result is a pattern too.

    Raises:
        InputError: several files have the same name, or a shard is missing.
    """
    for name in names:
        given = folder / name
        known = (*extensions, *_FURTHER_TABLES)
        if extension_of(given) in known and (_is_file(given) or _fits_files(given)):
            return given
        found = _files_named(folder, name, extensions) or _files_named(
            folder, name, _FURTHER_TABLES
        )
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(
                f"{folder} has several files for {field}: "
                f"{', '.join(str(p.relative_to(folder)) for p in found)}; write one of them with its "
                f"extension, '{field}: {found[0].relative_to(folder)}', or remove the others"
            )
    return None


def _files_named(folder: Path, name: str, extensions: Sequence[str]) -> list[Path]:
    """The files of a name given without extension; patterns for those in shards."""
    found = [
        path
        for layout in _LAYOUTS
        for extension in extensions
        if _is_file(path := folder / f"{layout.format(name)}{extension}")
    ]
    return found or [
        shards
        for layout in _SHARDED
        for extension in extensions
        if (shards := shards_of(folder / layout.format(name), extension))
    ]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the file system allows
        return False


def _fits_files(pattern: Path) -> bool:
    """Whether a pattern in a folder matches any file, whatever the folder's name."""
    return glob.has_magic(pattern.name) and bool(files_of_pattern(pattern))


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder"
    # Two levels, as judgements are often in a subfolder.
    names = sorted(
        str(p.relative_to(folder)) for p in (*folder.glob("*"), *folder.glob("*/*")) if p.is_file()
    )
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return (
        f"the folder holds {', '.join(names[:12])}{more}" if names else "the folder holds no files"
    )
