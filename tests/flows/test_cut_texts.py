"""Texts that are longer than the backbone's input: `plan` says how many before a run, its report after."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.pipeline import run_serially
from tests.flows.looked import look

LONG = "the deep lake freezes slowly and a warm wind is never cold"


def write(folder: Path, backbone: Path, max_length: int) -> Path:
    """An experiment on 10 texts, 5 of them long."""
    rows = {
        "train": [("ice", "a"), ("snow", "b"), (LONG, "a"), (f"no, {LONG}", "b")],
        "dev": [("cold", "a"), (f"dev {LONG}", "b")],
        "test": [("wind", "a"), (f"if {LONG}", "b"), (f"so {LONG}", "a"), ("lake", "b")],
    }
    for split, texts in rows.items():
        lines = ["text,label", *(f'"{text}",{label}' for text, label in texts)]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    content: dict[str, Any] = {
        "name": "cut",
        "backbone": {"source": str(backbone), "max_length": max_length},
        "capture": "hidden=2@tokens",
        "tasks": {
            "reviews": {
                "kind": "files",
                "task": {"kind": "classification"},
                "files": {split: str(folder / f"{split}.csv") for split in rows},
            }
        },
        "methods": {"mean": {"kind": "linear"}},
        "seeds": [0],
        "report": {"title": "Cut"},
        "runtime": {"extract": {"device": "cpu"}},
    }
    path = folder / "cut.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize(("max_length", "n_cut"), [(12, 5), (60, 0)])
def test_plan_and_report_say_how_many_texts_lose_their_end(
    tiny_bert: Path, tmp_path: Path, max_length: int, n_cut: int
) -> None:
    path, home = write(tmp_path, tiny_bert, max_length), tmp_path / "home"
    (extraction,) = look(path, home).plan().extractions
    told = extraction.cut_text()
    assert (extraction.n_texts, extraction.n_cut) == (10, n_cut)
    assert told == ("; 5 new texts are longer than max_length and lose their end" if n_cut else "")
    result = run_serially(path, home)
    notes = [n for n in result.notes() if "max_length" in n]
    expected = "Texts longer than `max_length`, read without their end: extract reviews 5 of 10."
    assert notes == ([expected] if n_cut else [])
    assert ("read without their end: extract reviews 5 of 10" in result.report.read_text()) == bool(
        n_cut
    )
    (extraction,) = look(path, home).plan().extractions
    assert extraction.n_cut == 0, "nothing is new"
