"""Pretrainings of layers that are of another kind, or cannot be."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.flows.pipeline import run_serially
from permafrost.storage.errors import InputError
from tests.flows.experiments import write
from tests.flows.layers_experiments import SIZES, experiment, written
from tests.flows.looked import look


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return written(tmp_path_factory.mktemp("freeze"))


def test_a_task_of_which_every_text_is_trained_on_cannot_be_measured(
    files: dict[str, str], tmp_path: Path
) -> None:
    whole = experiment(files)
    whole["tasks"]["again"] = dict(whole["tasks"]["pairs"])
    whole["pretrainings"]["encoders"]["task"] = "again"
    path, home = write(tmp_path / "experiment.yaml", whole), tmp_path / "home"
    with pytest.raises(InputError, match="all texts of the task that measured_on names are among"):
        run_serially(path, home)
    assert not [*home.glob("artifacts/pretrain/*")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"methods.pretrained.encoders": "other"},
            "starts from the pretraining 'other'; there are encoders",
        ),
        ({"pretrainings.encoders.task": "other"}, "names the task 'other'"),
        ({"pretrainings.encoders.measured_on": "other"}, "names the task 'other'"),
        (
            {"pretrainings.encoders.measured_on": "generic"},
            "measured_on is 'generic', the task that is trained on",
        ),
        (
            {
                "pretrainings.encoders": "{task: pairs, classifier: {seed: 0}, measured_on: generic}",
            },
            "measured_on is 'generic', but a classifier reconstructs nothing",
        ),
        (
            {"report.residuals": "[{method: other}]"},
            "report.residuals.0 names the method 'other'; there are cosine MLP",
        ),
        ({"methods.pretrained.latents": "{layers: '9'}"}, "hidden=9"),
        (
            {"methods.pretrained.grid": "{lr: [0.1, 0.2]}"},
            "test_by_epoch is 'kept', but grid tries lr",
        ),
        (
            {"recipes.two": "meta_eol", "methods.pretrained.latents": "{recipe: two}"},
            "ensemble of 8 prompts",
        ),
    ],
)
def test_wrong_experiments_say_what_is_wrong(
    files: dict[str, str], tmp_path: Path, change: dict[str, str], says: str
) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(files))
    overrides = [f"{field}={value}" for field, value in change.items()]
    with pytest.raises(InputError) as caught:
        look(path, tmp_path / "home", overrides)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"methods.pretrained.latents": "{at: mean}"},
            "reads pooled/hidden_mean/1, for which there is no pretrained encoder (there are those of "
            "pooled/hidden_last/1, pooled/hidden_last/2,",
        ),
        (
            {"pretrainings.encoders.latents": "{at: sum}"},
            "reads pooled/hidden_last/1, for which there is no pretrained encoder (there are those of "
            "pooled/hidden_sum/1,",
        ),
        (
            {"recipes.two": "plain:bos=added", "methods.pretrained.latents": "{recipe: two}"},
            "reads latents of the recipe 'two', but its encoders were pretrained on those of 'default'",
        ),
        (
            {"methods.pretrained.scale": "centred"},
            "reads latents with scale centred, but the encoders were pretrained on those with scale none",
        ),
    ],
)
def test_a_head_does_not_start_from_encoders_of_other_latents(
    files: dict[str, str], tmp_path: Path, change: dict[str, str], says: str
) -> None:
    """Codes of the right width are no sign that encoders have ever seen what they are given."""
    path, home = write(tmp_path / "experiment.yaml", experiment(files)), tmp_path / "home"
    with pytest.raises(InputError) as caught:
        run_serially(path, home, [f"{field}={value}" for field, value in change.items()])
    assert says in str(caught.value)
    assert not [*home.glob("artifacts/*")]


@pytest.mark.deep
def test_heads_start_from_a_sum_and_from_classified_pairs(
    files: dict[str, str], tmp_path: Path
) -> None:
    """Pretrainings of both kinds, on latents summed over tokens too, through to scores and the page."""
    whole = experiment(files)
    even, deep = {"early": 8, "late": 8}, {**SIZES, "middle": [2, 2, 2], "inner": "latent"}
    rows = {"text": ["the a", "the b", "the c"] * 8, "text_pair": ["a", "b", "no c"] * 8}
    related = tmp_path / "related.parquet"
    pq.write_table(pa.table({**rows, "label": [0, 1, 2] * 8}), related)
    whole["tasks"]["related"] = {
        "kind": "files",
        "files": {"train": str(related)},
        "task": {"kind": "pair_classification", "text": "text", "text_pair": "text_pair"},
    }
    few = {"max_epochs": 2, "batch_size": 16, "seed": 0}
    whole["pretrainings"] = {
        "sum": {
            "task": "generic",
            "latents": {"at": "sum"},
            "autoencoder": {**few, "encoders": even, "joined": 6},
        },
        "related": {"task": "related", "classifier": {**few, "encoders": deep}},
    }
    training = {
        "kind": "layers",
        "max_epochs": 2,
        "evaluate_every": 1,
        "batch_size": 16,
        "loss": "mse",
    }
    unified = {"kind": "unified_projection", "encoders": even, "d_embed": 6}
    siamese = {"kind": "autoencoder_siamese", "encoders": deep, "hidden": 8}
    whole["methods"] = {
        "sum": {**training, "head": unified, "encoders": "sum", "latents": {"at": "sum"}},
        "related": {**training, "head": siamese, "encoders": "related"},
    }
    whole["seeds"], whole["report"] = [0], {"title": "Pretrained otherwise"}
    home = tmp_path / "home"
    path = write(tmp_path / "experiment.yaml", whole)
    found = run_serially(path, home)
    assert found.computed["pretrain"] == found.computed["fit"] == 2
    page = found.report.read_text(encoding="utf-8")
    assert 'id="pretraining"' in page
    tables = found.report.with_name("tables.md").read_text(encoding="utf-8")
    assert "Reconstruction by layer, sum" in tables
    assert "Reconstruction by layer, related" not in tables
    assert run_serially(path, home).computed == {}
    whole["pretrainings"]["related"]["autoencoder"] = {"seed": 0}
    with pytest.raises(InputError, match="autoencoder and classifier are both given"):
        look(write(tmp_path / "both.yaml", whole), home)
    del whole["pretrainings"]["related"]["autoencoder"]
    whole["pretrainings"]["related"]["task"] = "generic"
    with pytest.raises(
        InputError, match="pretrained on pairs with classes, but the task is of kind"
    ):
        run_serially(write(tmp_path / "texts.yaml", whole), home)
