"""An experiment under a home, to look at after it ran."""

from collections.abc import Sequence
from pathlib import Path

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import Plan, make_plan
from permafrost.flows.preview import Preview
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stores import RecipeStores
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.store import FeatureStore, store_folder


class Looked:
    """Nodes by what they are, and what lies in the home."""

    def __init__(self, experiment: Experiment, home: Path) -> None:
        self.experiment, self.home = experiment, home
        self.nodes: ExperimentGraph = build_graph(experiment)
        self.context = Preview(self.nodes.graph, home, experiment.runtime)

    @property
    def artifacts(self) -> ArtifactStore:
        return self.context.artifacts

    @property
    def stores(self) -> dict[str, RecipeStores]:
        return self.nodes.stores

    @property
    def sizes(self) -> BackboneSizes:
        return next(iter(self.stores.values())).targets[0].sizes

    def corpus(self, task: str) -> Corpus:
        """From its artifact, or built."""
        for node in (*self.nodes.fits.values(), *self.nodes.extractions.values()):
            for given in node.inputs_named("corpus"):
                if given.ref == self.nodes.corpora[task].id:
                    return self.context.corpus(given)
        raise AssertionError(f"nothing reads the corpus {task}")

    def open_stores(self, recipe: str = DEFAULT_RECIPE) -> list[FeatureStore]:
        """The feature stores of a recipe."""
        ids = [t.identity for t in self.stores[recipe].targets]
        return [FeatureStore.open(store_folder(self.home, i.store_id), expect=i) for i in ids]

    def members(self, recipe: str, task: str) -> list[StoredFeatures]:
        """Features of a task's texts, one per prompt of an ensemble."""
        stores = zip(self.open_stores(recipe), self.stores[recipe].targets, strict=True)
        digests = self.corpus(task).digests
        return [StoredFeatures(store, target.sizes, digests) for store, target in stores]

    def plan(self) -> Plan:
        """What a run would do."""
        return make_plan(self.nodes, Preview(self.nodes.graph, self.home, self.experiment.runtime))


def look(path: Path, home: Path, overrides: Sequence[str] = ()) -> Looked:
    """The experiment in a file, under a home."""
    return Looked(load_experiment(path, overrides), home)
