"""A source of a corpus and a recipe that are one file each, outside the project: run, found again, edited."""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.flows.build import build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.nodes.corpora import corpus_node
from permafrost.flows.pipeline import run_serially
from permafrost.stages import plugins
from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.corpus.sources.retrieval import RetrievalCorpus
from permafrost.stages.extraction.recipes import (
    RECIPES,
    PlainRecipe,
    parse_recipe,
    recipe_identity,
    recipe_of,
)
from permafrost.stages.extraction.recipes.recipe import require_same_recipe
from permafrost.stages.extraction.target import target_of_store
from permafrost.stages.kinds import kinds_in
from permafrost.stages.plugins import use_files
from permafrost.storage.errors import IdentityMismatchError, InputError
from permafrost.storage.features.store import FeatureStore, all_stores
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import rows_of, write
from tests.flows.test_cli import Cli
from tests.stages.corpus.test_corpus_identity import cases
from tests.stages.corpus.test_corpus_identity import write as write_files
from tests.storage.small_store import snapshot

SOURCE = '''
from typing import Literal

import pyarrow as pa

from permafrost.stages.corpus.columns import Classification
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import CorpusSource


class Weather(CorpusSource):
    """Short texts on two kinds of weather."""

    kind: Literal["weather"] = "weather"
    n: int = 8

    def columns(self):
        return Classification()

    def facts(self):
        return self.model_dump()

    def rows(self):
        return [self._split(name) for name in ("train", "dev", "test")]

    def _split(self, name):
        texts = [f"{name} {'snow' if i % 2 else 'fire'} number {i}" for i in range(self.n)]
        labels = pa.chunked_array([[i % 2 for i in range(self.n)]])
        column = pa.chunked_array([texts], pa.large_string())
        return SplitRows(name, f"made {name}", column, None, labels, None)
'''
RECIPE = """
from typing import Literal

from permafrost.stages.extraction.recipes.prompts import PromptRecipe


def spoken(template):
    return f"say: {template}"


class Loud(PromptRecipe):
    kind: Literal["loud"] = "loud"
    template: str = "it is {text}"

    def instructed(self, template):
        return super().instructed(spoken(template))
"""


@pytest.fixture(autouse=True)
def no_plugins_stay() -> Iterator[None]:
    yield
    use_files([])


def experiment(folder: Path, backbone: Path) -> Path:
    content = tiny_experiment(backbone)
    linear = {"kind": "linear", "layers": 2, "c": [1.0]}
    del content["capture"]
    tasks: dict[str, Any] = {"made": content["tasks"]["ratio 0.2"], "mine": {"kind": "weather"}}
    return write(
        folder / "experiment.yaml",
        content
        | {
            "plugins": [str(folder / "weather.py"), str(folder / "loud.py")],
            "recipes": {"aloud": "loud:template=so {text}"},
            "tasks": tasks,
            "methods": {"plain": linear, "aloud": {**linear, "recipe": "aloud"}},
            "seeds": [0],
            "report": {"title": "Plug-ins"},
        },
    )


def ids(path: Path) -> dict[str, str]:
    """Key of each node by its label."""
    return {node.label: node.id for node in build_graph(load_experiment(path)).graph}


def stores(home: Path) -> set[str]:
    return {folder.name for folder in (home / "features").iterdir() if len(folder.name) == 32}


@pytest.mark.deep
def test_a_source_and_a_recipe_are_one_file_each_and_an_edit_runs_their_own_nodes_again(
    tiny_bert: Path, tmp_path: Path
) -> None:
    source, recipe, home = tmp_path / "weather.py", tmp_path / "loud.py", tmp_path / "home"
    source.write_text(SOURCE)
    recipe.write_text(RECIPE)
    path = experiment(tmp_path, tiny_bert)
    first = run_serially(path, home)
    assert {(r["task"], r["method"]) for r in rows_of(first)} == {
        (task, method) for task in ("made", "mine") for method in ("plain", "aloud")
    }
    known, known_stores = ids(path), stores(home)
    assert len(known_stores) == 2

    source.write_text(SOURCE.replace("number {i}", "no. {i}"))
    again = run_serially(path, home)
    changed = {label for label, id in ids(path).items() if id != known[label]}
    report = next(label for label in known if label.startswith("report"))
    assert changed == {label for label in known if "mine" in label} | {report}
    assert again.computed == Counter(corpus=1, extract=2, linear=2, report=1)
    assert stores(home) == known_stores

    source.write_text(SOURCE)
    recipe.write_text(RECIPE.replace("say: ", "shout: "))
    again = run_serially(path, home)
    changed = {label for label, id in ids(path).items() if id != known[label]}
    assert changed == {label for label in known if "aloud" in label} | {report}
    assert again.computed == Counter(extract=2, linear=2, report=1)
    (new,) = stores(home) - known_stores
    records = {s: FeatureStore.open(home / "features" / s).record for s in stores(home)}
    (old,) = [s for s in known_stores if "code" in records[s].identity.recipe]
    assert target_of_store(records[new], (), None).identity.store_id == new
    with pytest.raises(IdentityMismatchError, match=r"recipe\.code: store has '[0-9a-f]{32}'"):
        target_of_store(records[old], (), None)


BUILT_ON = {"graph_retrieval": {RetrievalCorpus.__module__}}
"""Sources that read their files as another one does."""


def test_a_corpus_depends_on_the_code_of_its_own_source_and_of_no_other(tmp_path: Path) -> None:
    write_files(tmp_path)
    for name in CORPUS_SOURCES.kinds():
        source = CORPUS_SOURCES.validate(cases(tmp_path)[name])
        own = {kind.__module__ for kind in kinds_in(source)} | BUILT_ON.get(name, set())
        reached = {name.split(":")[0] for name in corpus_node("task", source).code}
        # Kinds inside a source, such as knowledge graphs, are of other categories.
        sources = {m for m in reached if m.startswith(CORPUS_SOURCES.packages)}
        assert sources == {m for m in own if m.startswith(CORPUS_SOURCES.packages)}, name
        assert own <= reached, name
        assert "permafrost.stages.corpus.source" in reached


def test_a_probe_that_runs_the_backbone_keys_the_code_of_its_recipe(
    tiny_bert: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "loud.py"
    recipe.write_text(RECIPE)
    content = yaml.safe_load(experiment(tmp_path, tiny_bert).read_text())
    del content["tasks"]["mine"]
    curves = {"plain": {"n_texts": 2}, "aloud": {"n_texts": 2, "recipe": "aloud"}}
    probe = {"kind": "sensitivity", "tasks": ["made"], "methods": curves}
    content |= {"plugins": [str(recipe)], "probes": {"hangs": probe}}
    path = write(tmp_path / "probes.yaml", content)
    before = {node.label: node for node in build_graph(load_experiment(path)).graph}
    recipe.write_text(RECIPE.replace("say: ", "shout: "))
    changed = {label for label, id in ids(path).items() if id != before[label].id}
    own = {label for label in before if "aloud" in label}
    assert "probe aloud · made" in own
    report = {label for label in before if label.startswith("report")}
    assert changed == own | report
    # On a worker, whatever reads what was made under the recipe may have to wrap a text in it.
    carrying = {
        label for label, node in before.items() if "permafrost_plugins.loud" in node.plugins
    }
    assert carrying == own | report


def test_the_code_of_a_plug_in_recipe_is_in_its_identity_and_ours_have_none(tmp_path: Path) -> None:
    file = tmp_path / "loud.py"

    def identity(source: str) -> dict[str, Any]:
        file.write_text(source)
        use_files([file])
        return recipe_identity(parse_recipe("loud"))

    one = identity(RECIPE)
    # What the class calls counts, what is said about it does not.
    assert identity(RECIPE.replace("class Loud", "# A comment.\nclass Loud")) == one
    other = identity(RECIPE.replace("say: ", "shout: "))
    assert one.keys() == {"kind", "template", "readout", "code"}
    assert {name for name in one if one[name] != other[name]} == {"code"}
    assert recipe_of(other) == parse_recipe("loud")
    with pytest.raises(
        InputError, match=r"mine was made with other code of the recipe 'loud' than"
    ):
        require_same_recipe("mine", one)
    require_same_recipe("mine", other)
    assert all("code" not in kind.model_fields for kind in RECIPES.kinds().values())
    assert "code" not in recipe_identity(PlainRecipe())

    use_files([])
    with pytest.raises(InputError, match=r"the recipe .*'loud'.* cannot be made here: .*'plugins'"):
        recipe_of(other)
    with pytest.raises(InputError, match="there is no recipe 'loud'; there are contrastive, "):
        parse_recipe("loud")


def test_a_recipe_is_the_same_named_by_its_file_or_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "loud.py"
    file.write_text(RECIPE)
    use_files([file])
    named = recipe_identity(parse_recipe("loud"))
    use_files([])
    module = importlib.import_module("loud")
    plugins.register(module.Loud)
    assert recipe_identity(parse_recipe("loud")) == named
    file.write_text(RECIPE.replace("say: ", "shout: "))
    plugins.register(importlib.reload(module).Loud)
    assert recipe_identity(parse_recipe("loud"))["code"] != named["code"]
    monkeypatch.delitem(sys.modules, "loud")


def test_commands_take_a_recipe_of_a_plugin_once_its_file_is_named(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, texts, cli = tmp_path / "loud.py", tmp_path / "texts.txt", Cli(tmp_path / "home", capsys)
    file.write_text(RECIPE)
    texts.write_text("snow melts\nthe deep lake\n")
    source = ("--backbone", str(tiny_bert), "--recipe", "loud", "--device", "cpu")
    extract = ("extract", str(texts), *source, "--capture", "hidden=2")
    assert "there is no recipe 'loud'" in cli(*extract, code=2)
    cli(*extract, "--plugins", str(file))
    (store,) = all_stores(cli.home)
    shard = store.shard_path(0, "hidden/2")
    right = shard.read_bytes()
    shard.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    damaged = snapshot(store.root)

    use_files([])
    assert "name its file: --plugins my_head.py of a command" in cli(
        "repair", store.store_id, code=2
    )
    assert snapshot(store.root) == damaged
    assert "1 cell(s) computed again" in cli("repair", store.store_id, "--plugins", str(file))
    assert shard.read_bytes() == right
    use_files([])
    verify = ("verify", store.store_id, "--recompute", "1")
    assert "cannot be made here" in cli(*verify, code=2)
    assert "every checksum" in cli(*verify, "--plugins", str(file))


def test_a_recipe_has_no_field_for_its_code(tmp_path: Path) -> None:
    file = tmp_path / "loud.py"
    file.write_text(RECIPE + "    code: int = 0\n")
    with pytest.raises(InputError, match=r"has a field .code., which in a store"):
        use_files([file])
