"""How well the next token is predicted from each layer: `kind: next_token`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import Upstream
from permafrost.flows.methods.probes.probe import ANY_TASK, Probe, own_config
from permafrost.flows.nodes.reading import features
from permafrost.flows.stage import Stage
from permafrost.stages.token_prediction.config import NextTokenConfig
from permafrost.stages.token_prediction.prefixes import require_prefixes
from permafrost.stages.token_prediction.stored_tokens import require_tokens
from permafrost.storage.artifacts import Draft
from permafrost.storage.features.layout import TOKEN_IDS
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress


def _default_predictor(value: Any) -> Any:
    is_open = isinstance(value, dict) and "predictor" not in value
    return {"predictor": "linear", **value} if is_open else value


class NextTokenProbe(Probe):
    """How well the next token is predicted: by a linear map or softmax of each layer, or by one of two
    baselines."""

    task_kinds = ANY_TASK
    single_store = True
    caption = (
        "Prediction of the next token of test texts. By layer: a linear map of its vectors, trained on "
        "train and stopped on dev, with the rows of the backbone's own unembedding as keys, or with "
        "keys that are trained as well (`softmax_keys: trained`). The "
        "backbone's own prediction is one place, after the last block; frequencies of tokens in train "
        "see no text and are a level line."
    )

    kind: Literal["next_token"] = "next_token"
    methods: dict[str, Annotated[NextTokenConfig, BeforeValidator(_default_predictor)]] = Field(
        min_length=1
    )
    """Curves by name: what predicts; `predictor: linear` if none is named."""

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""
        method = self.methods[curve]
        arrays = (TOKEN_IDS.name, *method.arrays(upstream.sizes))
        read = upstream.reading(self.recipe, arrays, task)
        use = upstream.backbone(self.recipe)
        return ProbeNextToken.node(
            f"probe {curve} · {task}",
            {"kind": self.kind, **to_plain(method)},
            (upstream.corpus(task), *read.inputs),
            kinds=(use.recipe,),
            run_facts={
                **read.run_facts,
                **use.run_facts,
                "curve": curve,
                "task": task,
            },
            after=read.after,
        )


class ProbeNextToken(Stage):
    """Reads stored features, and the unembedding from the weight files; loads no backbone."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        from permafrost.stages.token_prediction.next_token import probe_next_token

        (prompt_features,), target = features(node, context), context.bare_target(node)
        corpus = context.corpus(node.input("corpus"))
        scores = probe_next_token(
            *(_config(node), prompt_features, target.recipe, target.files, corpus, progress),
            device=context.device,
        )
        scores.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("curve", "task")}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        from permafrost.stages.extraction.unembedding import require_unembedding

        method, target = _config(node), context.bare_target(node)
        require_prefixes(target.recipe, target.sizes)
        require_unembedding(target.files)
        corpus = context.corpus(node.input("corpus"))
        require_tokens(corpus, target.encoded, method.offset, method.seed, target.max_length)


def _config(node: Node) -> NextTokenConfig:
    return TypeAdapter[NextTokenConfig](NextTokenConfig).validate_python(own_config(node))
