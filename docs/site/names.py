"""Pages on every public name, whose docstrings Sphinx reads."""

import permafrost
from permafrost.flows.experiment import Experiment
from permafrost.stages.kinds import all_categories

FOLDER = "reference/names"
RETURNED = {
    "Encoders": (
        "permafrost.stages.encoder.Encoder",
        "permafrost.stages.encoder.TunedEncoder",
        "permafrost.stages.encoder.GraphTextEncoder",
        "permafrost.stages.encoder.method_encoder",
    ),
    "What is stored": (
        "permafrost.storage.artifacts.ArtifactStore",
        "permafrost.storage.artifacts.ArtifactRef",
        "permafrost.storage.artifacts.Manifest",
        "permafrost.storage.features.store.FeatureStore",
        "permafrost.flows.records.runs.RunRecord",
        "permafrost.flows.records.history.Run",
    ),
    "Readers": (
        "permafrost.storage.readers.FeatureReader",
        "permafrost.storage.ragged.Ragged",
    ),
}
"""What the front door returns or takes, by heading."""
EXTENDED = (
    "permafrost.stages.kinds.Kind",
    "permafrost.stages.kinds.Category",
    "permafrost.stages.heads.head.Pooling",
    "permafrost.flows.stage.Stage",
)
"""What a kind of one's own needs besides the base class of its category."""


def sections() -> dict[str, tuple[str, dict[str, list[str]]]]:
    """For each page its title, and import paths by heading."""
    public = [f"permafrost.{name}" for name in permafrost.__all__]
    objects = {path: getattr(permafrost, path.removeprefix("permafrost.")) for path in public}
    errors = [p for p, o in objects.items() if isinstance(o, type) and issubclass(o, BaseException)]
    classes = [p for p, o in objects.items() if isinstance(o, type) and p not in errors]
    functions = [p for p in public if p not in (*errors, *classes)]
    bases = {f"{c.base.__module__}.{c.base.__qualname__}": None for c in all_categories()}
    returned = {heading: list(paths) for heading, paths in RETURNED.items()}
    assert Experiment, "importing it has imported every category"
    return {
        "permafrost": (
            "import permafrost",
            {"Functions": functions, "Classes": classes, "Errors": errors},
        ),
        "behind": ("What it returns", returned),
        "bases": ("Base classes of kinds", {"Of all": list(EXTENDED), "By category": list(bases)}),
    }


def written_pages() -> dict[str, str]:
    """Text by path: an index, and every page."""
    pages = {
        f"{FOLDER}/{name}.md": f"# {title}\n\n" + "\n".join(_section(*one) for one in parts.items())
        for name, (title, parts) in sections().items()
    }
    names = "\n".join(sections())
    index = (
        "# Public names\n\nMade from the docstrings. What is not here may change without a word."
    )
    return {
        f"{FOLDER}/index.md": f"{index}\n\n```{{toctree}}\n:maxdepth: 2\n\n{names}\n```\n"
    } | pages


def _section(heading: str, paths: list[str]) -> str:
    return f"## {heading}\n\n" + "\n".join(map(_entry, paths))


def _entry(path: str) -> str:
    module, _, name = path.rpartition(".")
    found = getattr(__import__(module, fromlist=[name]), name)
    directive = "autoclass" if isinstance(found, type) else "autofunction"
    if isinstance(found, type) and issubclass(found, BaseException):
        directive = "autoexception"
    members = "   :members:\n" if directive == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {directive}:: {path}\n{members}```\n"
