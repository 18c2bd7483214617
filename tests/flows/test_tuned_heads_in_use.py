"""A head that was trained with its backbone outside its experiment: embedded with, and exported."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

import permafrost
from permafrost.stages.encoder import load_tuned
from permafrost.stages.encoder.plain_form import largest_difference, probe_texts
from permafrost.stages.extraction.backbone import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.recipes import recipe_identity
from permafrost.stages.finetune.tuned_head_files import load_tuned_head, save_tuned_head
from permafrost.storage.artifacts import ArtifactRef, ArtifactSpec, ArtifactStore
from permafrost.storage.features.identity import FloatName
from permafrost.storage.keys import digest, to_plain
from tests.flows.test_cli import Cli
from tests.stages.extraction.references import close, encoded, resolved
from tests.stages.extraction.tiny_models import save_model
from tests.stages.finetune.test_tuned_head import TEXTS, config, live, tuned

pytestmark = pytest.mark.deep

Files = Callable[[str], BackboneFiles]
NEW = ["a river under the night sun", *TEXTS[:3], "snow melts", *TEXTS[:1]]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "home", capsys)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return cache(
        lambda family: find_backbone(
            BackboneConfig(source=str(save_model(family, tmp_path_factory.mktemp("model"))))
        )
    )


def published(
    home: Path,
    files: BackboneFiles,
    train: str,
    head: str,
    place: str | None,
    dtype: FloatName = "float32",
    rate: float = 0.05,
    **tuning: object,
) -> str:
    """A fine-tuning as its node publishes it; returns its name."""
    backbone = load_backbone(files, dtype, "cpu")
    wanted = config(train, head, optim={"backbone_lr": rate, "max_epochs": 1})
    wanted = wanted.model_copy(update={"train": wanted.train.model_copy(update=tuning)})
    if not backbone.family.is_decoder:
        # The last block, so that sentence-transformers can say what is pooled without dropping any.
        wanted = wanted.model_copy(
            update={"fit": wanted.fit.model_copy(update={"layer": "hidden/3"})}
        )
    result = tuned(backbone, wanted)
    key = {
        "weights_digest": files.weights_digest,
        "tokenizer_digest": files.tokenizer_digest,
        "compute_dtype": dtype,
        "max_length": 60,
        "recipe": recipe_identity(resolved(backbone, "plain")),
    }
    spec = ArtifactSpec(
        stage="finetune", config={"finetune": to_plain(wanted), "backbone": to_plain(key)}
    )
    with ArtifactStore(home).publishing(spec, {}) as draft:
        save_tuned_head(result, draft.folder)
        if place is not None:
            draft.summary = {"backbone": place, "revision": "main"}
    return str(spec.ref)


def expected(home: Path, name: str, files: BackboneFiles, texts: list[str]) -> np.ndarray:
    """By the head itself on rows that the tuned backbone computes, one text at a time."""
    stage, _, key = name.partition("/")
    head = load_tuned_head(ArtifactStore(home).folder(ArtifactRef(stage=stage, key=key)))
    backbone = load_backbone(files, "float32", "cpu")
    head.tune(backbone)
    vectors: list[torch.Tensor] = []
    for text in texts:
        reader = replace(live(backbone, head.head.layer), encoded=encoded(backbone, texts=(text,)))
        rows, offsets = reader.rows(np.arange(1))
        vectors.append(head.head.embed(rows.detach(), offsets))
    return torch.cat(vectors).numpy()


def embedded(cli: Cli, texts: list[str], artifact: str, *flags: str) -> np.ndarray:
    source, out = cli.home.parent / "texts.parquet", cli.home.parent / "out.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    cli("embed", str(source), "--head", artifact, "-o", str(out), *flags)
    column = pq.read_table(out).column("embedding").combine_chunks()
    return column.flatten().to_numpy().reshape(len(texts), -1)


@pytest.mark.parametrize(
    ("family", "train"),
    [("llama", "lora"), pytest.param("bert", "last_blocks", marks=pytest.mark.deep)],
)
def test_texts_are_embedded_by_the_tuned_backbone(
    cli: Cli, files: Files, family: str, train: str
) -> None:
    base = files(family)
    name = published(cli.home, base, train, "glot", base.source)
    theirs = expected(cli.home, name, base, NEW)
    encoder = permafrost.open(cli.home).encoder(name, device="cpu")
    for found in (
        embedded(cli, NEW, name),
        encoder.encode(iter(NEW)),
        permafrost.mteb_encoder(encoder).vectors(NEW, "text"),
        permafrost.encode(NEW, head=name, home=cli.home, device="cpu"),
    ):
        np.testing.assert_allclose(found, theirs, rtol=2e-4, atol=2e-5)
    assert not (cli.home / "features").exists(), "nothing is stored"


def test_what_cannot_be_used_so_is_told(cli: Cli, files: Files) -> None:
    base, other = files("llama"), files("mistral")
    name = published(cli.home, base, "lora", "mean", None)
    texts = cli.home.parent / "texts.parquet"
    pq.write_table(pa.table({"text": [*NEW, "snow and ice " * 40]}), texts)
    out = ("-o", str(cli.home.parent / "out.parquet"))

    def refused(*flags: str) -> str:
        return cli("embed", str(texts), "--head", name, *out, *flags, code=2)

    assert "does not say where the backbone lies" in refused()
    assert base.weights_digest in refused("--backbone", other.source)
    assert "longer than max_length" in refused("--backbone", base.source, "--too-long", "refuse")
    assert "reads texts alone" in refused(
        "--backbone", base.source, "--graphs", "{kind: tables, nodes: n.csv, edges: e.csv}"
    )
    predicting = ("predict", str(texts), "--head", name, *out, "--backbone", base.source)
    assert "longer than max_length" in cli(*predicting, "--too-long", "refuse", code=2)
    assert not Path(out[1]).exists()
    assert "1 texts are longer" in cli(
        "embed", str(texts), "--head", name, *out, "--backbone", base.source
    )
    assert "1 texts are longer" in cli(*predicting)


@pytest.mark.parametrize("train", ["lora", pytest.param("full", marks=pytest.mark.deep)])
def test_a_head_that_the_library_knows_is_exported_for_it_alone(
    cli: Cli, files: Files, train: str
) -> None:
    base = files("bert")
    before = base.weights_digest
    name = published(cli.home, base, train, "mean", base.source)
    out = cli.home.parent / "exported"
    done = cli.json("export", name, "-o", str(out))
    assert done["form"] == "plain"
    assert 0 <= done["difference"] < 2e-5
    model = SentenceTransformer(str(out), device="cpu", local_files_only=True)
    np.testing.assert_allclose(
        model.encode(NEW), expected(cli.home, name, base, NEW), rtol=2e-4, atol=2e-5
    )
    assert "fine-tuned together" in (out / "README.md").read_text()
    assert find_backbone(BackboneConfig(source=base.source)).weights_digest == before
    assert [p.name for p in out.parent.iterdir() if p.name.startswith(".draft")] == []


@pytest.mark.deep
def test_any_other_head_is_exported_with_its_merged_backbone(cli: Cli, files: Files) -> None:
    base = files("llama")
    name = published(cli.home, base, "lora", "glot", base.source)
    out = cli.home.parent / "exported"
    done = cli.json("export", name, "-o", str(out))
    assert done["form"] == "module"
    found = permafrost.load_exported(out, device="cpu").encode(NEW)
    mine = load_tuned(cli.home, name, device="cpu").encode(NEW)
    np.testing.assert_allclose(found, mine, rtol=2e-4, atol=2e-5)


def test_what_merging_into_half_precision_rounds_away_is_told(cli: Cli, files: Files) -> None:
    """At a small rate most of what was trained is less than the rounding of the weights."""
    base = files("llama")
    name = published(cli.home, base, "lora", "glot", base.source, "bfloat16", 1e-3)
    out = cli.home.parent / "exported"
    done = cli.json("export", name, "-o", str(out))
    assert done["form"] == "module"
    texts = probe_texts(60)
    found = permafrost.load_exported(out, device="cpu").encode(texts)
    mine = load_tuned(cli.home, name, device="cpu").encode(texts)
    # The store of the exported folder rounds, too.
    assert done["merge_difference"] == pytest.approx(largest_difference(found, mine), rel=0.1)
    assert done["merge_difference"] > 1e-4
    said = cli("export", name, "-o", str(out.with_name("again")))
    assert (
        f"differ by {done['merge_difference']:.1e} from those that were scored (--form peft" in said
    )
    exact = published(cli.home, base, "lora", "mean", base.source)
    assert cli.json("export", exact, "-o", str(out.with_name("exact")))["merge_difference"] is None


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_exported_as_peft_loads_them(cli: Cli, files: Files, tmp_path: Path) -> None:
    """On weights in half precision, which peft would take as they are."""
    half = save_model("llama", tmp_path / "half", torch.float16)
    base = find_backbone(BackboneConfig(source=str(half)))
    name = published(cli.home, base, "lora", "glot", base.source)
    out = cli.home.parent / "adapters"
    done = cli.json("export", name, "-o", str(out), "--form", "peft")
    assert (done["form"], done["trained_in"]) == ("peft", "float32")
    assert {p.name for p in out.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    model = peft.AutoPeftModelForFeatureExtraction.from_pretrained(
        str(out), dtype=getattr(torch, done["trained_in"])
    ).eval()
    encoder = load_tuned(cli.home, name, device="cpu")
    batch = encoded(encoder.backbone, texts=("snow melts",))
    ids = torch.from_numpy(batch.token_ids.data.astype(np.int64))[None]
    with torch.no_grad():
        theirs = model(input_ids=ids, output_hidden_states=True).hidden_states[2]
    mine, _ = replace(live(encoder.backbone), encoded=batch).rows(np.arange(1))
    assert close(theirs[0, -len(mine) :], mine)
    full = published(cli.home, base, "full", "mean", base.source)
    said = cli("export", full, "-o", str(out.with_name("other")), "--form", "peft", code=2)
    assert "trained with 'train: full', which makes no adapters" in said
    assert not out.with_name("other").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_what_peft_rounds_of_trained_norms_is_told(cli: Cli, files: Files, tmp_path: Path) -> None:
    base = files("llama")

    def exported(name: str, targets: str) -> Any:
        fit = (cli.home, base, "lora", "mean", base.source, "bfloat16", 1e-3)
        artifact = published(*fit, targets=targets)
        return artifact, cli.json("export", artifact, "--form", "peft", "-o", str(tmp_path / name))

    artifact, done = exported("norms", "attention_and_norms")
    texts, encoder = probe_texts(60), load_tuned(cli.home, artifact, device="cpu")
    theirs = peft.AutoPeftModelForFeatureExtraction.from_pretrained(
        str(tmp_path / "norms"), dtype=torch.bfloat16
    ).eval()
    inputs = encoder.fitted.base.encoded(texts).token_ids
    each = np.split(inputs.data, inputs.offsets[1:-1])
    with torch.no_grad():
        passes = [theirs(torch.tensor(ids)[None].long(), output_hidden_states=True) for ids in each]
    means = torch.stack([one.hidden_states[2][0].float().mean(dim=0) for one in passes])
    difference = largest_difference(means.numpy(), encoder.encode(texts))
    assert done["peft_difference"] == pytest.approx(difference, rel=1e-3)
    assert 1e-3 < done["peft_difference"] < 0.2
    said = cli("export", artifact, "--form", "peft", "-o", str(tmp_path / "again"))
    assert f"so that vectors differ by {done['peft_difference']:.1e} from those that" in said
    assert exported("adapters", "attention")[1]["peft_difference"] is None


def test_the_identity_of_an_encoder_holds_what_was_trained(
    cli: Cli, files: Files, tmp_path: Path
) -> None:
    """A key says what was asked for: other devices come to other weights under it."""
    base = files("llama")
    name = published(cli.home, base, "lora", "mean", base.source)
    encoder = load_tuned(cli.home, name, device="cpu")
    shutil.copytree(encoder.fitted.folder, other := tmp_path / "other")
    path = next(other.rglob("adapter_model.safetensors"))
    save_file({k: v + 1 for k, v in load_file(path).items()}, path)
    changed = replace(encoder, fitted=replace(encoder.fitted, folder=other))
    assert digest(changed.identity) != digest(encoder.identity)
    assert digest(load_tuned(cli.home, name, device="cpu").identity) == digest(encoder.identity)
