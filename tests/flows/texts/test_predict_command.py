"""`permafrost predict` and `permafrost.predict`: the answers of trained heads to new texts."""

import csv
import gzip
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import permafrost
from permafrost.stages.encoder import export_head
from permafrost.stages.freeze import CosineMlpHead, PairFitConfig
from permafrost.stages.heads import GlotHead, MeanHead
from tests.documents import marked
from tests.flows.looked import look
from tests.flows.scored_answers import answers_as_scored
from tests.flows.test_cli import Cli
from tests.stages.encoder.fitted_homes import TEXTS, Home, home_with_features
from tests.stages.extraction.tiny_models import save_model

LATENTS = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "home", capsys)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda model_type: save_model(model_type, tmp_path_factory.mktemp("model")))


@pytest.fixture
def home(cli: Cli, folder: Callable[[str], Path]) -> Home:
    return home_with_features(cli.home, folder("bert"), "hidden=2@tokens", texts=["never"])


@pytest.mark.parametrize("method", ["mean", "GLOT"])
def test_answers_are_those_of_the_score(finished_home: Path, method: str) -> None:
    dag = look(finished_home.parent / "tiny.yaml", finished_home)
    cell = (method, "ratio 0.5", 1)
    scored = dag.artifacts.open(dag.nodes.scores[cell].spec.ref)
    head = str(dag.nodes.fits[cell].spec.ref)
    assert head.partition("/")[0] == ("choose" if method == "GLOT" else "fit")
    assert answers_as_scored(finished_home, head, scored, dag.corpus("ratio 0.5")) == 2


def test_a_file_of_texts_becomes_one_of_classes(cli: Cli, home: Home) -> None:
    head = home.head(GlotHead(hidden=8, tau=0.3), "hidden/2")
    rows, out = cli.home.parent / "rows.csv", cli.home.parent / "out.parquet"
    lines = [f"r{i};{text}" for i, text in enumerate([*TEXTS, TEXTS[0]])]
    rows.write_text("\n".join(["key;words", *lines]))
    flags = ("--head", head, "-o", str(out), "--delimiter", ";", "--id", "key")
    said = cli("predict", f"{rows}::words", *flags)
    assert f"5 rows x 2 classes by {head}" in said
    table = pq.read_table(out)
    columns = ["id", "text", "prediction", "score", "probability_no", "probability_yes"]
    assert table.column_names == columns
    assert table["id"].to_pylist() == ["r0", "r1", "r2", "r3", "r4"]
    assert table["text"].to_pylist() == [*TEXTS, TEXTS[0]]
    found = permafrost.open(cli.home).encoder(head, device="cpu").predict([*TEXTS, TEXTS[0]])
    assert isinstance(found, permafrost.PredictedClasses)
    assert found.class_names == ("no", "yes")
    assert table["prediction"].to_pylist() == found.names
    shares = np.stack([table[c].to_numpy() for c in columns[-2:]], axis=1)
    assert shares.dtype == np.float32
    np.testing.assert_allclose(shares, found.probabilities, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-6)
    assert table["score"].to_numpy() == pytest.approx(shares.max(1))
    # Nothing is rounded that tells texts apart.
    assert len(np.unique(shares[:, 0])) == len(TEXTS)
    facts = json.loads(table.schema.metadata[b"permafrost"])
    assert facts["head"] == head
    assert facts["classes"] == ["no", "yes"]
    assert facts["store_ids"] == [home.store.store_id]
    assert facts["backbone"]
    assert str(cli.home.parent) not in json.dumps(facts), "paths mean nothing elsewhere"
    # The second time everything is cached, and the file is replaced whole.
    done = cli.json("predict", f"{rows}::words", *flags)
    assert (done["n_texts"], done["n_tokens_computed"], done["task"]) == (5, 0, "classification")
    assert pq.read_table(out).equals(table)
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(".draft")] == []


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_pairs_are_read_and_written_in_other_formats(cli: Cli, home: Home, ending: str) -> None:
    head = home.head(MeanHead(), "hidden/2", "pair_classification")
    rows, out = cli.home.parent / "rows.jsonl.gz", cli.home.parent / f"out{ending}"
    pairs = list(zip(TEXTS, [*TEXTS[1:], 'a "b",\nc'], strict=True))
    with gzip.open(rows, "wt") as file:
        file.writelines(json.dumps({"text": a, "other": b}) + "\n" for a, b in pairs)
    cli("predict", str(rows), "--text-pair", "other", "--head", head, "-o", str(out))
    if ending == ".csv":
        with out.open(newline="") as file:
            found: list[dict[str, Any]] = list(csv.DictReader(file))
    else:
        found = [json.loads(line) for line in out.read_text().splitlines()]
    expected = permafrost.predict(
        [a for a, _ in pairs], [b for _, b in pairs], head=head, home=cli.home, device="cpu"
    )
    assert isinstance(expected, permafrost.PredictedClasses)
    assert [(r["text"], r["text_pair"]) for r in found] == pairs
    assert [str(r["id"]) for r in found] == ["0", "1", "2", "3"]
    assert [r["prediction"] for r in found] == expected.names
    assert expected.probabilities is not None
    for number, name in enumerate(("none", "one", "both")):
        shares = [float(r[f"probability_{name}"]) for r in found]
        assert shares == pytest.approx(expected.probabilities[:, number].tolist(), rel=1e-5)


def test_graded_pairs_have_scores_in_the_units_of_their_labels(
    cli: Cli, home: Home, folder: Callable[[str], Path]
) -> None:
    head = home.head(GlotHead(hidden=8, tau=0.3), "hidden/2", "similarity")
    rows, out = cli.home.parent / "rows.parquet", cli.home.parent / "out.parquet"
    pq.write_table(pa.table({"text": TEXTS, "b": TEXTS[::-1], "n": [7, 8, 9, 10]}), rows)
    cli("predict", str(rows), "--text-pair", "b", "--id", "n", "--head", head, "-o", str(out))
    table = pq.read_table(out)
    assert table.column_names == ["id", "text", "text_pair", "score", "similarity"]
    assert table["id"].to_pylist() == [7, 8, 9, 10]
    vectors = permafrost.encode(TEXTS, head=head, home=cli.home, device="cpu").astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (unit * unit[::-1]).sum(1)
    np.testing.assert_allclose(table["similarity"].to_numpy(), cosines, rtol=1e-6)
    # Labels of train went from 1 to 5.
    np.testing.assert_allclose(table["score"].to_numpy(), 1 + 4 * cosines, rtol=1e-6)
    other = home_with_features(cli.home, folder("gpt2"), "hidden=1-3@last", texts=["never"])
    scorer = other.layers_head(PairFitConfig(head=CosineMlpHead(hidden=4), seed=0), LATENTS)
    cli("predict", str(rows), "--text-pair", "b", "--head", scorer, "-o", str(out))
    table = pq.read_table(out)
    found = table["similarity"].to_numpy()
    assert ((found >= 0) & (found <= 1)).all()
    np.testing.assert_allclose(table["score"].to_numpy(), 1 + 4 * found)


def test_wrong_input_is_told_and_leaves_no_file(cli: Cli, home: Home) -> None:
    single = home.head(MeanHead(), "hidden/2")
    pair = home.head(MeanHead(), "hidden/2", "pair_classification")
    blind = home.head(MeanHead(), "hidden/2", "unlabelled")
    there = cli.home.parent
    pq.write_table(
        pa.table({"text": ["ice", "snow"], "b": ["a", "c"], "x": [0.5, 1]}), there / "t.parquet"
    )
    (there / "blank.csv").write_text("text\nice\n  \n")
    (there / "out").mkdir()
    out = ("-o", str(there / "out.parquet"))
    cases: dict[tuple[str, ...], str] = {
        ("t.parquet", "--head", pair, *out): "trained on pairs of texts",
        ("t.parquet", "--head", single, *out, "--text-pair", "b"): "trained on single texts",
        ("t.parquet", "--head", blind, *out): "no classes and no scores to predict",
        ("t.parquet", "--head", pair, *out, "--text-pair", "c"): "no column 'c'; its columns are",
        ("t.parquet", "--head", single, *out, "--id", "x"): "an id is text or a whole number",
        ("t.parquet", "--head", single, *out, "--delimiter", ";"): "which has none; leave it out",
        (
            "t.parquet",
            "--head",
            single,
            *out,
            "--encoding",
            "utf-9",
        ): "the encoding 'utf-9' is unknown",
        ("blank.csv", "--head", single, *out): "row 2 of",
        ("gone.csv", "--head", single, *out): "there is no file",
        ("t.parquet", "--head", "fit/abc123", *out): "no artifact begins with",
        ("t.parquet", "--head", single, "-o", str(there / "out.xlsx")): "whose ending is .xlsx",
        ("t.parquet", "--head", single, "-o", str(there / "out")): "which is a folder",
        (
            "t.parquet",
            "--head",
            single,
            "-o",
            str(there / "t.parquet"),
        ): "the file that texts are read from",
    }
    for (name, *flags), says in cases.items():
        assert says in cli("predict", str(there / name), *flags, code=2), says
    with pytest.raises(permafrost.InputError, match="give each text its second one"):
        permafrost.predict(["ice"], ["a", "b"], head=pair, home=cli.home)
    assert list((there / "out").iterdir()) == []
    assert not (there / "out.parquet").exists()


def test_artifacts_that_do_not_answer_say_which_do(finished_home: Path) -> None:
    dag = look(finished_home.parent / "tiny.yaml", finished_home)
    cell = ("mean", "ratio 0.5", 1)
    scored, fitted = (str(n[cell].spec.ref) for n in (dag.nodes.scores, dag.nodes.fits))
    with pytest.raises(permafrost.InputError, match=f"is a score artifact.*made from {fitted}"):
        permafrost.predict(["ice"], head=scored, home=finished_home)
    with pytest.raises(permafrost.InputError, match=re.escape("write [text]")):
        permafrost.predict("ice", head=fitted, home=finished_home)
    with pytest.raises(permafrost.InputError, match=r"texts\[1\] is blank"):
        permafrost.predict(["ice", " "], head=fitted, home=finished_home)
    encoder = permafrost.open(finished_home).encoder(fitted)
    pairs: Any = [("ice", "snow")]
    for use in (encoder.predict, encoder.encode):
        with pytest.raises(
            permafrost.InputError, match=r"texts\[0\] is \('ice', 'snow'\) and no text"
        ):
            use(pairs)


def test_the_snippets_of_the_document_run(
    folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = marked("test: predicts", "python")
    assert len(blocks) == 4
    home = home_with_features(tmp_path / ".permafrost", folder("bert"), "hidden=2@tokens")
    single = home.head(MeanHead(), "hidden/2")
    pair = home.head(MeanHead(), "hidden/2", "pair_classification")
    for head, place in ((single, "my-classifier"), (pair, "my-pairs")):
        export_head(home.path, head, tmp_path / place, device="cpu", use="classifier")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"head": single, "pair_head": pair}
    for block in blocks:
        exec(compile(block, "predict.md", "exec"), names)
    expected = permafrost.predict(names["texts"], head=single, home=".permafrost")
    assert isinstance(expected, permafrost.PredictedClasses)
    np.testing.assert_allclose(names["probabilities"], expected.probabilities, atol=1e-3)
