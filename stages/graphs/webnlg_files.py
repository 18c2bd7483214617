"""WebNLG in files: triples with texts that tell of them, in tables or as the XML of its releases."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from permafrost.stages.corpus.data_files import files_of_pattern, look_for
from permafrost.stages.corpus.names import find_column
from permafrost.stages.corpus.table_files import column_names, file_identity, file_sha256
from permafrost.stages.corpus.values import list_rows, texts_of
from permafrost.stages.graphs.relation_names import require_free
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

SPLITS = ("train", "dev", "test")
_REFERENCES = "rdf-to-text-generation-test-data-with-refs"
"""Beginning of the one file of a release's test folder that belongs to train and dev; the others lack texts,
or are those of another task."""

RawTriple = tuple[str, str, str]
"""Subject, relation and object as written in the file."""


@dataclass(frozen=True)
class Told:
    """One text and the triples that it tells of."""

    triples: tuple[RawTriple, ...]
    text: str

    @property
    def relations(self) -> set[str]:
        """Names of the relations."""
        return {relation for _, relation, _ in self.triples}


def split_files(folder: Path, split: str) -> list[Path]:
    """The table of a split, or its XML files.

    Raises:
        InputError: there are neither, or several tables.
    """
    if (table := look_for(folder, [split], split)) is not None:
        return [table]
    found = sorted((folder / split).rglob("*.xml"))
    told = [path for path in found if path.name.startswith(_REFERENCES)]
    if not found:
        raise InputError(
            f"{folder} has neither a table of {split} ({split}.parquet, .jsonl, .csv or .tsv) nor XML files "
            f"in a folder {split}; give the folder that holds train, dev and test, such as release_v3.0/en; "
            f"relative paths count from the working folder {Path.cwd()}"
        )
    return told or found


def split_identity(folder: Path, split: str) -> dict[str, Any]:
    """All that determines what is read of a split: formats and digests of its files, in order."""
    files = split_files(folder, split)
    if files[0].suffix != ".xml":
        return file_identity(files[0])
    lines = "\n".join(map(file_sha256, files))
    return {"format": ".xml", "sha256": hashlib.sha256(lines.encode()).hexdigest()}


def read_split(folder: Path, split: str) -> list[Told]:
    """Every text of a split, as often as it is in the files.

    Raises:
        InputError: a file is missing or broken, or has a row without text or triples, or a triple that is not
            of the form `subject | relation | object`, or whose relation is not free (`require_free`).
    """
    files = split_files(folder, split)
    rows = _rows_of_table(files[0]) if files[0].suffix != ".xml" else _rows_of_xml(files)
    told: list[Told] = []
    for where, text, triples in rows:
        if not text.strip() or not triples:
            raise InputError(
                f"{where} has {'no triples' if text.strip() else f'the text {quoted(text)}'}; give every "
                "text the triples that it tells of, or remove it"
            )
        told.append(Told(tuple(_triple(one, where) for one in triples), text.strip()))
    if not told:
        raise InputError(f"{files[0]} holds no text; give at least one")
    return told


def _triple(written: str, where: str) -> RawTriple:
    parts = [part.strip() for part in str(written).split(" | ")]
    if len(parts) != 3 or not all(parts):
        raise InputError(
            f"{where} has the triple {quoted(written)}, expected 'subject | relation | object'; repair it"
        )
    head, relation, tail = parts
    require_free(relation, f"{where} has the relation {quoted(relation)}")
    return head, relation, tail


def _rows_of_table(path: Path) -> Iterator[tuple[str, str, list[str]]]:
    names = column_names(path)
    text = find_column("text", "text", ("text", "lex"), names, str(path))
    listed = find_column(
        "triples", "triples", ("triples", "input", "modified_triple_sets"), names, str(path)
    )
    files = files_of_pattern(path) if not path.exists() else [path]
    for file in files:
        table, lists = list_rows(file, [listed], single=[text])
        rows = zip(texts_of(table, text, str(file)), lists[listed], strict=True)
        for row, (told, triples) in enumerate(rows, start=1):
            yield f"row {row} of {file}", told, triples


def _rows_of_xml(files: Iterable[Path]) -> Iterator[tuple[str, str, list[str]]]:
    for path in files:
        try:
            root = ElementTree.parse(path).getroot()
        except (ElementTree.ParseError, OSError) as error:
            raise InputError(f"{path} cannot be read as XML: {error}; repair the file") from error
        for entry in root.iter("entry"):
            where = f"entry {entry.get('eid')} ({entry.get('category')}) of {path}"
            triples = [t.text or "" for t in entry.findall("modifiedtripleset/mtriple")]
            for text in entry.findall("lex"):
                # Releases with Russian texts have both languages in one file.
                if text.get("lang", "en") in ("", "en"):
                    yield where, text.text or "", triples


_DATATYPE = re.compile(r'^"(.*)"(\^\^\S+|@\w+)?$')


def label_of(entity: str) -> str:
    """An entity or value as a text: `Aarhus_Airport` is "Aarhus Airport", `"Aarhus, Denmark"` loses its
    quotation marks."""
    bare = match[1] if (match := _DATATYPE.match(entity)) else entity
    return " ".join(bare.replace("_", " ").split()) or entity
