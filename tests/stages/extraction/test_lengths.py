"""Texts longer than max_length: cut by default, refused before anything is written if so set."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from permafrost.stages.extraction import lengths
from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    load_backbone,
)
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import ExtractReport, extract
from permafrost.stages.extraction.files import TOKENIZER_CONFIG, tokenizer_files
from permafrost.stages.extraction.lengths import (
    KnownLengths,
    Measured,
    Total,
    estimated,
    kept_cuts,
    measure,
)
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress

LIMIT = 12
SHORT = ["ice", "snow !", "cold"]
LONG = ["the deep lake freezes slowly", "a warm wind is never cold"]
"""In bytes of which few merge: more than LIMIT tokens."""


def target_of(folder: Path, recipe: str) -> ExtractTarget:
    """Of a model with room for LIMIT tokens."""
    backbone = BackboneConfig(source=str(folder), max_length=LIMIT)
    capture = parse_capture("hidden=1")
    return resolve_target(
        ExtractConfig(backbone=backbone, recipe=parse_recipe(recipe), capture=capture)
    )


class Extraction:
    """An extraction of a tiny decoder with room for LIMIT tokens, counting backbone loads."""

    def __init__(self, files: BackboneFiles, home: Path) -> None:
        self.files, self.home = files, home
        self.loads = 0

    def target(self, recipe: str) -> ExtractTarget:
        return target_of(self.files.folder, recipe)

    def load(self) -> Backbone:
        self.loads += 1
        return load_backbone(self.files, "float32", "cpu")

    def __call__(self, texts: list[str], recipe: str = "plain", **runtime: object) -> ExtractReport:
        settings = ExtractRuntime.model_validate({"device": "cpu", "batch_tokens": 64, **runtime})
        digests = [text_digest(t) for t in texts]
        return extract(
            self.target(recipe),
            self.home,
            texts,
            digests,
            settings,
            SilentProgress(),
            load=self.load,
        )


@pytest.fixture
def run(tiny_files: Callable[[str], BackboneFiles], tmp_path: Path) -> Extraction:
    return Extraction(tiny_files("llama"), tmp_path / "home")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_texts_are_cut_and_counted_unless_set_otherwise(run: Extraction) -> None:
    assert run([*SHORT, *LONG]).n_truncated == 2
    assert run([*SHORT, *LONG], too_long="cut").n_truncated == 2


@pytest.mark.parametrize("block_texts", [1, 2, 100])
def test_refusing_names_the_texts_and_writes_nothing(run: Extraction, block_texts: int) -> None:
    # 28 bytes of which "the" is one token, and <s>.
    with pytest.raises(
        InputError,
        match=r"2 of the 5 different texts are longer than max_length, which is 12 tokens; the first is "
        r"'the deep lake freezes slowly' with 27 tokens .* split or leave out .* 'cut'",
    ):
        run(
            [SHORT[0], *LONG, *SHORT[1:]],
            too_long="refuse",
            block_texts=block_texts,
        )
    assert not run.home.exists()
    assert run.loads == 0


def test_texts_already_cut_in_the_store_are_refused_too(run: Extraction) -> None:
    run([*SHORT, *LONG])
    before, loads = contents(run.home), run.loads
    with pytest.raises(
        InputError, match=r"1 of the 2 different texts are longer .* first is 'a warm wind"
    ):
        run([SHORT[1], LONG[1]], too_long="refuse")
    with pytest.raises(
        InputError, match=r"2 of the 3 different texts are longer .* first is 'thin blue grey"
    ):
        run(["thin blue grey ice", SHORT[0], LONG[0]], too_long="refuse")
    assert contents(run.home) == before
    assert run.loads == loads


def test_refusing_leaves_texts_that_fit_alone(run: Extraction) -> None:
    run([*LONG, SHORT[0]])
    report = run(SHORT, too_long="refuse")
    assert (report.n_truncated, report.n_cells) == (0, 3)
    again = run(SHORT, too_long="refuse")
    assert (again.n_truncated, again.n_cells, again.n_tokens) == (0, 0, 0)


def test_a_text_of_exactly_the_limit_fits(run: Extraction) -> None:
    exact = "x" * (LIMIT - 1)
    assert run([exact], too_long="refuse").n_tokens == LIMIT
    with pytest.raises(InputError, match=r"1 of the 1 different texts .* with 13 tokens"):
        run([exact + "x"], too_long="refuse")


RECIPES = (
    "plain",
    "template:template=so {text} it is",
    "echo",
    "htp",
    "htp:block=tokens,size=2",
    "token_prepending:spelling=text",
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_of_long_texts_the_beginning_tells_the_length(
    run: Extraction, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(run.target(recipe), max_length=60)
    sentence = "The deep lake freezes slowly. A warm wind is never cold! "
    # Read from its beginning, short, blank for long, and long without being cut.
    texts = [
        20 * sentence,
        SHORT[0],
        600 * " " + SHORT[1],
        20 * SHORT[2],
        "snow" + 30 * " ice " * 9,
    ]
    measured = measure(target, texts)
    exact, cut = measured.lengths, measured.truncated.tolist()
    assert cut[:2] == [True, False]
    longest = 0

    def tokenised(target: ExtractTarget, some: Sequence[str]) -> Measured:
        nonlocal longest
        longest = max(longest, *map(len, some))
        return measure(target, some)

    monkeypatch.setattr(lengths, "measure", tokenised)
    found, are_cut, counted = estimated(target, texts[:2])
    assert (found.tolist(), are_cut.tolist(), counted) == (exact[:2].tolist(), cut[:2], False)
    assert longest <= 8 * 60 < len(texts[0])
    found, are_cut, counted = estimated(target, texts[1:2])
    assert (found.tolist(), are_cut.tolist(), counted) == (exact[1:2].tolist(), cut[1:2], True)
    found, are_cut, _ = estimated(target, texts)
    assert (found.tolist(), are_cut.tolist()) == (exact.tolist(), cut)


def test_numbers_of_tokens_are_kept_for_the_same_texts_read_the_same_way(
    run: Extraction, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    counted: list[list[str]] = []

    def tokenised(target: ExtractTarget, some: Sequence[str]) -> Measured:
        counted.append(list(some))
        return measure(target, some)

    monkeypatch.setattr(lengths, "measure", tokenised)

    def total(target: ExtractTarget, texts: list[str]) -> Total:
        # As the next command would, which knows nothing.
        return KnownLengths().total(target, texts, [text_digest(t) for t in texts])

    plain, template = run.target("plain"), run.target("template:template=so {text}")
    expected = {
        name: Total(tuple(measure(target, texts).lengths.tolist()), True, 2 if name == "cut" else 0)
        for name, target, texts in [
            ("plain", plain, SHORT),
            ("template", template, SHORT),
            ("longer", replace(plain, max_length=60), LONG),
            ("cut", plain, LONG),
        ]
    }
    assert len(set(expected.values())) == 4
    assert total(plain, SHORT) == total(plain, SHORT) == expected["plain"]
    assert counted == [SHORT]
    assert total(template, SHORT) == expected["template"]
    assert total(plain, LONG) == expected["cut"]
    assert total(replace(plain, max_length=60), LONG) == expected["longer"]
    assert counted == [SHORT, SHORT, LONG, LONG]
    total(plain, SHORT[:2])
    assert counted[4:] == [SHORT[:2]]
    total(template, SHORT)
    assert len(counted) == 5


def test_what_is_cut_is_kept_for_the_same_texts_read_the_same_way(
    run: Extraction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    asked: list[list[str]] = []

    def counted(target: ExtractTarget, texts: list[str]) -> Measured:
        asked.append(texts)
        return measure(target, texts)

    monkeypatch.setattr(lengths, "measure", counted)

    def cut(target: ExtractTarget, *groups: list[str]) -> list[bool]:
        with kept_cuts(target, "corpus") as are_cut:
            return [one for group in groups for one in are_cut(group)]

    plain = run.target("plain")
    assert cut(plain, [*SHORT, *LONG], LONG[:1]) == [False, False, False, True, True, True]
    assert asked == [[*SHORT, *LONG]]
    assert cut(plain, LONG, SHORT) == [True, True, False, False, False]
    assert len(asked) == 1
    assert cut(replace(plain, max_length=60), LONG) == [False, False]
    assert cut(plain, ["ice", "lake"]) == [False, False]
    assert asked[1:] == [LONG, ["ice", "lake"]], "one answer a name is kept"


def test_tokens_of_another_config_with_the_same_tokenizer_files_are_counted_anew(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers chooses the tokenizer's class by config.json: here one with <s> and one without."""
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    llama = Path(shutil.copytree(model_folder("llama"), tmp_path / "llama"))
    (llama / TOKENIZER_CONFIG).write_text('{"model_max_length": 60}')
    neox = Path(shutil.copytree(model_folder("gpt_neox"), tmp_path / "gpt_neox"))
    for file in tokenizer_files(neox):
        (neox / file).unlink()
    for file in tokenizer_files(llama):
        shutil.copy(llama / file, neox)
    known, digests = KnownLengths(), list(map(text_digest, SHORT))
    targets = [target_of(folder, "plain") for folder in (llama, neox)]
    assert len({target.identity.tokenizer_digest for target in targets}) == 1
    expected = [Total(tuple(measure(t, SHORT).lengths.tolist()), True, 0) for t in targets]
    assert expected[0] != expected[1]
    assert [known.total(target, SHORT, digests) for target in targets] == expected
    n = 1 + len("snow !")
    is_cut: list[Sequence[bool]] = []
    for target in targets:
        with kept_cuts(replace(target, max_length=n - 1), "corpus") as are_cut:
            is_cut.append(are_cut(["snow !"]))
    assert is_cut == [[True], [False]]


@pytest.mark.parametrize(
    ("recipe", "length"),
    [("template:template=so {text}", 1 + 3 + 11), ("htp:block=tokens,size=5", 18)],
)
def test_the_prompt_and_placeholders_count(run: Extraction, recipe: str, length: int) -> None:
    """11 tokens of text; with <s> they would fit alone. Three blocks of 5, two placeholders each."""
    assert run(["x" * 11], too_long="refuse").n_tokens == LIMIT
    with pytest.raises(
        InputError, match=rf"1 of the 1 different texts .* with {length} tokens under this recipe"
    ):
        run(["x" * 11], recipe, too_long="refuse")


def test_there_are_two_ways() -> None:
    with pytest.raises(ValidationError, match="'cut' or 'refuse'"):
        ExtractRuntime.model_validate({"too_long": "drop"})
