"""`permafrost embed`: methods, layers, ensembles, and what the file says about its vectors."""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from permafrost.flows.texts import embedding
from permafrost.flows.texts.embedding import development_pairs
from permafrost.stages.heads import MeanHead
from permafrost.storage.features.store import all_stores
from tests.stages.encoder.fitted_homes import home_with_features
from tests.stages.extraction.tiny_models import save_model

TEXTS = ["the deep lake freezes", "ice", "snow melts", "ice"]
assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5)
"""Stored in float32: sums of numbers up to about 10 in another order, through three blocks."""

Embed = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grouped heads, and room for the prompts of MetaEOL, whose tokens are bytes here."""
    return save_model("llama", tmp_path_factory.mktemp("llama"), max_position_embeddings=512)


@pytest.fixture
def permafrost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command line in this process; returns what it printed, checks its exit code."""

    def run(*arguments: str, code: int = 0) -> str:
        from permafrost.flows.cli import main

        argv = sys.argv
        sys.argv = ["permafrost", *arguments, "--home", str(tmp_path / "home")]
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = int(end.code or 0)
        finally:
            sys.argv = argv
        out, err = capsys.readouterr()
        assert ended == code, f"exit code {ended}\n{out}\n{err}"
        return " ".join((out + err).split()) if "--json" not in arguments else out

    return run


@pytest.fixture
def embed(permafrost: Callable[..., str], tmp_path: Path) -> Embed:
    """Embed TEXTS (or others); returns figures, and the file's vectors, texts and facts."""

    def run(backbone: Path, *flags: str, texts: list[str] | None = None) -> dict[str, Any]:
        source, out = tmp_path / "texts.parquet", tmp_path / "out.parquet"
        pq.write_table(pa.table({"text": texts or TEXTS}), source)
        printed = permafrost(
            "embed", str(source), "--backbone", str(backbone), "-o", str(out), *flags, "--json"
        )
        table = pq.read_table(out)
        width = table.schema.field("embedding").type.list_size
        vectors = table.column("embedding").combine_chunks().flatten().to_numpy()
        return {
            **json.loads(printed),
            "vectors": vectors.reshape(-1, width),
            "texts": table.column("text").to_pylist(),
            "facts": json.loads(table.schema.metadata[b"permafrost"]),
        }

    return run


@pytest.fixture
def dev_file(tmp_path: Path) -> Path:
    """Graded pairs, on some of which texts repeat."""
    words = ["snow", "ice", "frost", "lake", "river", "cold", "warm", "wind", "sun", "night"]
    rng = np.random.default_rng(0)
    a, b = ([" ".join(rng.choice(words, 3)) for _ in range(12)] for _ in range(2))
    b[3] = a[0]
    path = tmp_path / "dev.csv"
    scores = rng.integers(0, 6, 12).astype(np.float64)
    pa.csv.write_csv(pa.table({"text_a": a, "text_b": b, "score": scores}), path)
    return path


def _attention_outputs(folder: Path, texts: list[str]) -> np.ndarray:
    """transformers' attention outputs at the last token, `[block, text, d_model]`."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept: list[list[np.ndarray]] = [[] for _ in model.layers]
    for block, mine in zip(model.layers, kept, strict=True):
        block.self_attn.o_proj.register_forward_hook(
            lambda _, given, out, mine=mine: mine.append(out[0, -1].numpy())
        )
    with torch.inference_mode():
        for text in texts:
            model(input_ids=torch.tensor([tokenizer(text)["input_ids"]]))
    return np.array(kept)


def test_aligned_wva_on_a_decoder_with_grouped_heads(embed: Embed, tiny_llama: Path) -> None:
    flags = ("--method", "aligned_wva", "--layers", "2-3", "--store-dtype", "float32")
    done = embed(tiny_llama, *flags)
    expected = _attention_outputs(tiny_llama, TEXTS)[1:].mean(0)
    assert_close(done["vectors"], expected)
    assert done["texts"] == TEXTS
    assert np.array_equal(done["vectors"][1], done["vectors"][3])
    facts = done["facts"]
    assert facts["layers"] == [2, 3]
    assert facts["arrays"] == [f"{w}/{k}" for w in ("attention_rows", "values") for k in (2, 3)]
    assert facts["config"]["combine"] == "average"
    assert facts["store"]["recipe"]["readout"] == "last"
    assert facts["store_ids"] == done["store_ids"]
    assert embed(tiny_llama, *flags[:2], "--layers", "3", *flags[4:])["n_tokens_computed"] == 0


@pytest.mark.parametrize("method", ["first", "last", "max", "weighted_mean", "hs", "va", "wva"])
def test_every_method_on_an_encoder(embed: Embed, tiny_bert: Path, method: str) -> None:
    done = embed(tiny_bert, "--method", method)
    assert done["vectors"].shape == (4, 32)
    different = done["vectors"][[0, 1, 2]]
    assert len(np.unique(different, axis=0)) == 3 or method == "first"
    assert done["facts"]["layers"] == ([1, 2, 3] if method in ("hs", "va", "wva") else [3])


def test_only_what_is_needed_is_captured(embed: Embed, tiny_llama: Path, tmp_path: Path) -> None:
    embed(tiny_llama, "--method", "last")
    (store,) = all_stores(tmp_path / "home")
    assert store.arrays() == ["hidden/final", "span", "token_ids"]
    embed(tiny_llama, "--method", "va", "--layers", "1")
    (store,) = all_stores(tmp_path / "home")
    assert store.arrays() == ["hidden/final", "span", "token_ids", "values/1"]


def test_concatenation_and_unit_length(embed: Embed, tiny_bert: Path) -> None:
    flags = ("--of", "values", "--layers", "all", "--combine", "concatenate")
    done = embed(tiny_bert, *flags, "--normalise", "l2")
    assert done["vectors"].shape == (4, 3 * 32)
    # Each is a float32 number: unit length within a few of its rounding errors.
    np.testing.assert_allclose(np.linalg.norm(done["vectors"], axis=1), 1, rtol=1e-6)
    plain = embed(tiny_bert, *flags)["vectors"]
    np.testing.assert_allclose(
        done["vectors"], plain / np.linalg.norm(plain, axis=1, keepdims=True), rtol=1e-5
    )


def test_auto_takes_the_best_prefix_of_the_ranked_layers(
    embed: Embed, permafrost: Callable[..., str], tiny_bert: Path, dev_file: Path, tmp_path: Path
) -> None:
    rows = pa.csv.read_csv(dev_file).to_pylist()
    dev_texts = [row[side] for row in rows for side in ("text_a", "text_b")]
    vectors = {
        k: embed(tiny_bert, "--method", "va", "--layers", str(k), texts=dev_texts)["vectors"]
        for k in (1, 2, 3)
    }

    def score(layers: list[int]) -> float:
        mean = np.mean([vectors[k] for k in layers], axis=0, dtype=np.float64)
        unit = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        cosines = (unit[0::2] * unit[1::2]).sum(1)
        return float(spearmanr(cosines, [row["score"] for row in rows])[0])  # type: ignore[arg-type]

    ranking = sorted(vectors, key=lambda k: -score([k]))
    best = max((ranking[:n] for n in (1, 2, 3)), key=score)
    done = embed(tiny_bert, "--method", "va", "--layers", "auto", "--dev", str(dev_file))
    assert done["layers"] == done["facts"]["layers"] == sorted(best)
    assert done["facts"]["config"]["layers"] == ",".join(map(str, sorted(best)))
    assert done["facts"]["layers_chosen_on"] == str(dev_file)
    named = embed(tiny_bert, "--method", "va", "--layers", done["facts"]["config"]["layers"])
    assert np.array_equal(named["vectors"], done["vectors"])
    said = permafrost(
        *("embed", str(tmp_path / "texts.parquet"), "--backbone", str(tiny_bert)),
        *("--method", "va", "--layers", "auto", "--dev", str(dev_file)),
        *("-o", str(tmp_path / "again.parquet")),
    )
    assert f"dev.csv: {', '.join(map(str, sorted(best)))} " in said
    single = embed(tiny_bert, "--method", "va", "--layers", "best", "--dev", str(dev_file))
    assert single["layers"] == ranking[:1]


@pytest.mark.parametrize(
    "names",
    [
        ("text", "text_pair", "label"),
        ("sentence1", "sentence2", "score"),
        ("text_a", "text_b", "score", "label"),
    ],
    ids="-".join,
)
def test_development_pairs_have_the_names_of_pairs_anywhere(
    names: tuple[str, ...], dev_file: Path, tmp_path: Path
) -> None:
    table = pa.csv.read_csv(dev_file)
    if len(names) == 4:  # what was read before other names were goes on being read
        table = table.append_column("label", pa.array(["x"] * len(table)))
    pa.csv.write_csv(table.rename_columns(list(names)), dev_file)
    assert (
        development_pairs(str(dev_file)).examples["label"].to_pylist() == table["score"].to_pylist()
    )


def test_an_ensemble_has_one_store_per_prompt(
    embed: Embed, tiny_llama: Path, tmp_path: Path
) -> None:
    flags = ("--method", "last", "--max-length", "500")
    done = embed(tiny_llama, "--recipe", "meta_eol", *flags)
    assert len(set(done["store_ids"])) == len(all_stores(tmp_path / "home")) == 8
    assert [len(s["recipe"]["prompts"]) for s in done["facts"]["stores"]] == [1] * 8
    assert len(done["facts"]["recipe"]["prompts"]) == 8
    single = [embed(tiny_llama, "--recipe", f"meta_eol[{i}]", *flags) for i in range(1, 9)]
    assert {s["n_tokens_computed"] for s in single} == {0}
    assert [s["store_ids"][0] for s in single] == done["store_ids"]
    # Sums of eight float32 numbers near 1.
    np.testing.assert_allclose(
        done["vectors"], np.mean([s["vectors"] for s in single], axis=0), rtol=1e-5, atol=1e-6
    )
    wide = embed(tiny_llama, "--recipe", "meta_eol", *flags, "--combine", "concatenate")
    assert np.array_equal(wide["vectors"], np.hstack([s["vectors"] for s in single]))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--layers", "auto"), "text, text_pair and label"),
        (("--layers", "2", "--dev", "dev.csv"), "--dev dev.csv is for --layers auto and best only"),
        (("--layers", "auto", "--dev", "nothing.csv"), "nothing.csv"),
        (("--layers", "9"), "hidden 0 to 3"),
        (("--layers", "deep"), "'deep' is not a layer"),
        (("--method", "va", "--layers", "0"), "values 1 to 3"),
        (("--method", "wva", "--of", "keys"), "--of"),
        (("--method", "hs", "--of", "values"), "use method va"),
        (("--method", "va", "--of", "hidden"), "has no use with --method va, which reads values"),
        (("--revision", "v2"), "--revision v2 is of a hub id, and"),
        (("--combine", "sum"), "--combine"),
        (("--normalise", "l1"), "--normalise"),
        (("--method", "median"), "aligned_wva, first, hs, last, max, mean, va, weighted_mean, wva"),
        (
            ("--head", "fit/3f2a", "--of", "hidden", "--dtype", "x"),
            "--of, --dtype have no use with --head fit/3f2a: ",
        ),
    ],
)
def test_wrong_flags_are_told(
    permafrost: Callable[..., str],
    tiny_bert: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    says: str,
) -> None:
    source, out = tmp_path / "texts.txt", tmp_path / "out.parquet"
    source.write_text("snow\n")
    said = permafrost(
        "embed", str(source), "--backbone", str(tiny_bert), "-o", str(out), *flags, code=2
    )
    assert says in said
    assert not out.exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "flag",
    [
        ("--method", "mean"),
        ("--layers", "last"),
        ("--of", "values"),
        ("--combine", "concatenate"),
        ("--dev", "dev.csv"),
        ("--recipe", "echo"),
        ("--dtype", "bfloat16"),
        ("--store-dtype", "float32"),
        ("--max-length", "8"),
        ("--revision", "banana"),
    ],
    ids=lambda flag: flag[0],
)
def test_what_a_head_settles_is_not_asked_for(
    permafrost: Callable[..., str], tiny_bert: Path, tmp_path: Path, flag: tuple[str, str]
) -> None:
    home = home_with_features(tmp_path / "home", tiny_bert, "hidden=2@tokens")
    head = home.head(MeanHead(), "hidden/2", "similarity")
    source, out = tmp_path / "texts.txt", tmp_path / "out.parquet"
    source.write_text("snow\n")
    said = permafrost("embed", str(source), "--head", head, "-o", str(out), *flag, code=2)
    assert f"{flag[0]} has no use with --head {head}: " in said
    assert "leave it out" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("folder", "which is a folder"),
        ("texts.txt/out.parquet", "texts.txt, which is not a folder"),
        ("texts", "is the file that texts are read from"),
    ],
)
def test_a_place_that_no_file_can_have_is_told_before_anything_runs(
    permafrost: Callable[..., str], tiny_bert: Path, tmp_path: Path, output: str, says: str
) -> None:
    (tmp_path / "folder").mkdir()
    source = tmp_path / "texts.txt"
    source.write_text("snow\n")
    (tmp_path / "texts").symlink_to(source)
    out = str(tmp_path / output)
    said = permafrost("embed", str(source), "--backbone", str(tiny_bert), "-o", out, code=2)
    assert says in said
    assert not (tmp_path / "home").exists()


def test_development_pairs_without_their_columns_are_refused(
    permafrost: Callable[..., str], tiny_bert: Path, dev_file: Path, tmp_path: Path
) -> None:
    table = pa.csv.read_csv(dev_file).rename_columns(["text_a", "text_b", "gold"])
    pa.csv.write_csv(table, dev_file)
    source = tmp_path / "texts.txt"
    source.write_text("snow\n")
    arguments = ("embed", str(source), "--backbone", str(tiny_bert), "--method", "va")
    said = permafrost(
        *arguments, *("--layers", "auto", "--dev", str(dev_file), "-o", "out.parquet"), code=2
    )
    assert "no column 'label' (nor score, " in said
    assert "'gold'" in said


@pytest.mark.parametrize("n_pairs", [1, 2])
def test_development_pairs_that_rank_nothing_are_told_before_anything_runs(
    permafrost: Callable[..., str], tiny_bert: Path, tmp_path: Path, n_pairs: int
) -> None:
    dev, source = tmp_path / "dev.csv", tmp_path / "texts.txt"
    dev.write_text("text,text_pair,label\n" + "snow,ice,3\n" * n_pairs)
    source.write_text("snow\n")
    arguments = ("embed", str(source), "--backbone", str(tiny_bert), "-o", "out.parquet")
    said = permafrost(*arguments, "--layers", "auto", "--dev", str(dev), code=2)
    assert f"the {n_pairs} development pairs have 1 different score(s)" in said
    assert not (tmp_path / "home").exists()


def test_texts_that_are_too_long_are_cut_and_counted_or_refused(
    permafrost: Callable[..., str], tiny_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(dict.fromkeys(TEXTS)))
    out = tmp_path / "out.parquet"
    arguments = ("embed", str(file), "--backbone", str(tiny_llama), "-o", str(out))
    short = (*arguments, "--max-length", "6")
    refused = permafrost(*short, "--too-long", "refuse", code=2)
    assert "longer than" in refused
    assert not out.exists()
    assert not (tmp_path / "home" / "features").exists(), "something was written"
    assert "2 texts are longer than max_length and were cut" in permafrost(*short)
    assert "are longer than max_length" not in permafrost(*arguments)
    assert "there are cut and refuse" in permafrost(*arguments, "--too-long", "split", code=2)
    # Nothing has to run, on whatever device.
    for command in (arguments, ("extract", *arguments[1:4], "--capture", "hidden=1@mean")):
        assert "the device 'tpu' is not supported" in permafrost(
            *command, "--device", "tpu", code=2
        )


def test_extract_fills_a_store_per_prompt_of_an_ensemble(
    permafrost: Callable[..., str], tiny_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(dict.fromkeys(TEXTS)))
    arguments = ("extract", str(file), "--backbone", str(tiny_llama), "--recipe", "meta_eol")
    arguments = (*arguments, "--max-length", "400")
    done = json.loads(permafrost(*arguments, "--capture", "hidden=final@last", "--json"))
    assert len({s["store_id"] for s in done["stores"]}) == 8
    assert done["store_id"] == done["stores"][0]["store_id"]
    assert {s.store_id for s in all_stores(tmp_path / "home")} == {
        s["store_id"] for s in done["stores"]
    }


def test_a_file_of_another_form_and_an_id_per_row(
    permafrost: Callable[..., str], tiny_bert: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "texts.csv", tmp_path / "out.parquet"
    file.write_bytes("key;body\nb7;Schnee fällt\na1;Eis\n".encode("latin-1"))
    form = ("--delimiter", ";", "--encoding", "latin-1")
    source = (f"{file}::body", "--backbone", str(tiny_bert))
    permafrost("embed", *source, "-o", str(out), *form, "--id", "key")
    table = pq.read_table(out)
    assert table.column_names == ["id", "text", "embedding"]
    assert table.select(["id", "text"]).to_pylist() == [
        {"id": "b7", "text": "Schnee fällt"},
        {"id": "a1", "text": "Eis"},
    ]
    said = permafrost("extract", *source, *form, "--capture", "hidden=last@tokens")
    assert "2 texts: nothing was missing" in said
    out.unlink()
    refused = permafrost("embed", *source, "-o", str(out), *form[:2], code=2)
    assert "utf-8" in refused.lower()
    assert not out.exists()


def test_an_array_that_texts_and_labels_have_is_named_once(
    permafrost: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a graph-text model has them whose texts and labels one backbone reads."""
    arrays = ["pooled/hidden_mean/6", "pooled/hidden_mean/6"]
    done = {"n_texts": 1, "width": 384, "arrays": arrays, "n_tokens_computed": 0, "n_truncated": 0}
    monkeypatch.setattr(embedding, "embed_texts", lambda *rest: done)
    (tmp_path / "t.txt").write_text("a cup\n")
    flags = "-o", str(tmp_path / "out.parquet"), "--backbone", "minilm"
    said = permafrost("embed", str(tmp_path / "t.txt"), *flags)
    assert "1 texts x 384 from pooled/hidden_mean/6 (0 tokens computed)" in said
