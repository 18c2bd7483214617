"""WebNLG in small: tables, and the XML of a release, with the same content."""

import json
import random
from pathlib import Path
from xml.sax.saxutils import escape

RELATIONS = ("birthPlace", "isPartOf", "leader_name", "country")
ONLY_IN = {"train": "onlyTrain", "dev": "onlyDev", "test": "onlyTest"}
Row = tuple[str, list[str]]


def entries(split: str, n: int = 60, seed: int = 0) -> list[Row]:
    """Texts of one to three triples; every tenth has a relation that no other split has."""
    draw = random.Random(f"{split} {seed}")
    rows: list[Row] = []
    for i in range(n):
        names = [*draw.sample(RELATIONS, 1 + i % 3)]
        if i % 10 == 9:
            names[0] = ONLY_IN[split]
        triples = [
            f'{split}_Person_{i} | {name} | "{split} place {i}, {j}"'
            for j, name in enumerate(names)
        ]
        told = ", ".join(f"{name} {split} place {i}, {j}" for j, name in enumerate(names))
        rows.append((f"{split} Person {i} has {told}.", triples))
    return rows


def write_tables(folder: Path, **changed: list[Row]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split in ONLY_IN:
        lines = [
            json.dumps({"text": text, "triples": triples})
            for text, triples in changed.get(split, entries(split))
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_release(folder: Path) -> Path:
    """Train and dev by number of triples, test in one file beside others of another task."""
    for split in ("train", "dev"):
        for n in (1, 2, 3):
            rows = [row for row in entries(split) if len(row[1]) == n]
            _write_xml(folder / split / f"{n}triples" / f"{split}.xml", rows)
    name = "rdf-to-text-generation-test-data-{}-refs-en.xml"
    _write_xml(folder / "test" / name.format("with"), entries("test"))
    _write_xml(folder / "test" / name.format("without"), [("", t) for _, t in entries("test")])
    other = [("A text of another task.", ["A | country | B"])]
    _write_xml(folder / "test" / "semantic-parsing-test-data-with-refs-en.xml", other)
    return folder


def _write_xml(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["<benchmark><entries>"]
    for i, (text, triples) in enumerate(rows):
        told = "".join(f"<mtriple>{escape(t)}</mtriple>" for t in triples)
        lex = f'<lex comment="good" lid="Id1">{escape(text)}</lex><lex lang="ru">текст</lex>'
        lines.append(
            f'<entry category="Person" eid="Id{i}"><modifiedtripleset>{told}</modifiedtripleset>'
            f"{lex if text else ''}</entry>"
        )
    path.write_text("\n".join([*lines, "</entries></benchmark>"]))
