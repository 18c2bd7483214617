"""What is imported late: torch, Prefect, Dask, what draws, models of transformers, peft; told by the text of
our modules, as importing them takes seconds."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def imported_at_once(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Modules, and names in modules, that a module imports when it is imported itself."""
    for node in nodes:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imported_at_once(node.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case _:
                yield from imported_at_once(ast.iter_child_nodes(node))


def reached(*names: str) -> dict[str, str]:
    """Every module that these import, directly or not, ours and others', and who imports it."""
    found: dict[str, str] = {}
    todo = [(name, "") for name in names]
    while todo:
        name, importer = todo.pop()
        if name in found:
            continue
        found[name] = importer
        path = ROOT / name.replace(".", "/")
        sources = [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()]
        todo += [(parent, name) for parent in [name.rpartition(".")[0]] if parent]
        for source in sources:
            tree = ast.parse(source.read_text(encoding="utf-8"))
            todo += [(other, name) for other in imported_at_once(tree.body)]
    return found


def test_neither_the_front_door_nor_the_command_line_imports_dask() -> None:
    found = reached("permafrost.flows.front", "permafrost.flows.cli.app")
    assert "permafrost.flows.running" in found
    assert {"distributed", "dask"} & found.keys() == set(), found.get("distributed")


def test_what_runs_an_experiment_imports_prefect_only_to_show_it() -> None:
    found = reached(
        "permafrost.flows.front", "permafrost.flows.cli.app", "permafrost.flows.running"
    )
    assert "permafrost.flows.build" in found
    assert "prefect" not in found, found.get("prefect")
    assert "prefect" in reached("permafrost.flows.pipeline")


def test_whoever_plans_draws_nothing_and_loads_no_model_of_transformers() -> None:
    found = reached("permafrost.flows.build", "permafrost.flows.checks", "permafrost.flows.plan")
    assert "permafrost.flows.nodes.reporting" in found
    assert "matplotlib" not in found, found.get("matplotlib")
    for library in ("mteb", "sklearn", "datasets", "peft", "torch_geometric", "zarr"):
        assert library not in found, found.get(library)
    # The package itself imports its parts when they are asked for.
    parts = [name for name in found if name.startswith("transformers.")]
    assert not parts, found[parts[0]]


def test_whoever_plans_imports_nothing_that_computes() -> None:
    # With every kind that an experiment may name but `pyg_relational`, whose class torch-geometric is asked
    # for.
    kinds = [
        *(f"permafrost.flows.methods.{n}" for n in ("head", "linear", "linear_on_head", "embed")),
        *(f"permafrost.flows.methods.{n}" for n in ("surface", "constant", "layers")),
        *(f"permafrost.flows.methods.{n}" for n in ("layers_on_heads", "finetuned")),
        *(f"permafrost.flows.methods.{n}" for n in ("contrastive", "graph_text")),
        *(
            f"permafrost.flows.methods.probes.{n}"
            for n in ("geometry", "layers", "logit_lens", "next_token", "raw_cosine")
        ),
        *(
            f"permafrost.flows.methods.probes.{n}"
            for n in ("attention_map", "path_bound", "sensitivity", "task_score", "token_graph")
        ),
        *(f"permafrost.stages.heads.{n}" for n in ("glot", "mlp", "adapool", "scorer", "poolings")),
        *(
            f"permafrost.stages.fit.losses.{n}"
            for n in ("cross_entropy", "cosine_mse", "contrastive")
        ),
        *(f"permafrost.stages.extraction.recipes.{n}" for n in ("plain", "prompts", "htp", "echo")),
        *(
            f"permafrost.stages.freeze.{n}"
            for n in ("autoencoder_siamese", "cosine_mlp", "siamese", "unified", "losses")
        ),
        "permafrost.stages.freeze.unified_projection",
        *(
            f"permafrost.stages.finetune.tunings.{n}"
            for n in ("full", "last_blocks", "lora", "probe")
        ),
        *(
            f"permafrost.stages.finetune.losses.{n}"
            for n in ("alignment", "binary", "choice", "retrieval")
        ),
        *(
            f"permafrost.stages.finetune.models.{n}"
            for n in ("gt2vec", "graph_network", "text_only")
        ),
        *(
            f"permafrost.stages.graph_encoders.kinds.{n}"
            for n in ("gcn", "gin", "relational_attention")
        ),
        *(f"permafrost.stages.graph_encoders.readouts.{n}" for n in ("attention", "mean")),
    ]
    found = reached(
        "permafrost.flows.build",
        "permafrost.flows.checks",
        "permafrost.flows.plan",
        "permafrost.flows.running",
        *kinds,
    )
    assert "permafrost.flows.experiment" in found
    for library in (
        "torch",
        "transformers",
        "tokenizers",
        "safetensors",
        "scipy",
        "huggingface_hub",
    ):
        assert library not in found, found[library]


def test_listings_import_neither_torch_nor_what_computes() -> None:
    every = reached("permafrost.flows.cli.app")
    loaded = {name for name in every if "permafrost" not in name}
    # Told by what the command line's own modules import at once, and these in turn.
    assert "numpy" in loaded
    for library in ("torch", "transformers", "scipy", "sklearn", "prefect", "matplotlib"):
        assert library not in loaded, every[library]


def test_whoever_explains_an_artifact_loads_no_torch() -> None:
    found = reached("permafrost.flows.why.explaining", "permafrost.flows.why.changed_texts")
    assert "permafrost.stages.corpus.corpus" in found
    for library in ("torch", "transformers", "prefect", "sklearn"):
        assert library not in found, found[library]


def test_whoever_writes_the_report_draws() -> None:
    assert "matplotlib" in reached("permafrost.flows.nodes.report_writing")


def test_a_run_on_dask_does() -> None:
    assert "distributed" in reached("permafrost.flows.engine.dask")


def test_adapters_import_peft_when_they_are_made() -> None:
    found = reached("permafrost.stages.finetune.adapters")
    assert "transformers" in found
    assert "peft" not in found
