"""Experiments that a run would refuse, each made of one that is right, and what is said of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from tests.stages.extraction.tiny_models import save_model

Content = dict[str, Any]
Change = Callable[[Content, Path], None]

HEAD = {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/2"}
DEV, TEST = ({"kind": "from_train", "fraction": f} for f in (0.1, 0.2))
CONTRASTIVE = {"kind": "contrastive"}
FROZEN = {"kind": "layers", "head": {"kind": "cosine_mlp"}, "label_range": [0, 9]}


def jsonl(path: Path, rows: list[Content]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def one_file(folder: Path, rows: list[Content], **fields: Any) -> Content:
    """A corpus of one file, of which dev and test are taken."""
    kind = fields.pop("kind", "classification")
    task = {"kind": kind, **fields.pop("columns", {})}
    files = {"train": jsonl(folder / f"{kind}.jsonl", rows)}
    return {"kind": "files", "files": files, "task": task, "dev": DEV, "test": TEST, **fields}


def classes(folder: Path, n: int = 3, **fields: Any) -> Content:
    return one_file(folder, [{"text": f"snow {i}", "label": i % n} for i in range(40)], **fields)


def graded(folder: Path, **fields: Any) -> Content:
    rows = [{"text": f"ice {i}", "text_pair": f"lake {i}", "label": i % 10} for i in range(40)]
    return one_file(folder, rows, kind="similarity", **fields)


def pairs(folder: Path, **fields: Any) -> Content:
    rows = [{"text": f"ice {i}", "text_pair": f"lake {i}"} for i in range(40)]
    return one_file(folder, rows, kind="unlabelled", columns={"text_pair": "text_pair"}, **fields)


def tasks(make: Callable[..., Content], method: Content | None = None, **fields: Any) -> Change:
    """The task is another one, and the method is."""

    def apply(content: Content, folder: Path) -> None:
        content["tasks"] = {"task": make(folder, **fields)}
        if method is not None:
            content["methods"] = {"method": method}

    return apply


def probe(make: Callable[..., Content], kind: str, method: Content, **fields: Any) -> Change:
    def apply(content: Content, folder: Path) -> None:
        content["tasks"]["probed"] = make(folder / "probed", **fields)
        content["methods"]["method"] = {**HEAD, "tasks": ["task"]}
        content["probes"] = {"p": {"kind": kind, "tasks": ["probed"], "methods": {"curve": method}}}

    return apply


def put(**changes: Any) -> Change:
    """Top-level fields."""
    return lambda content, _: content.update(changes)


def twice(content: Content, folder: Path) -> None:
    content["tasks"]["probed"] = graded(folder / "probed")
    probes = {"tasks": ["probed"], "methods": {"curve": {"method": "mean"}}}
    content["probes"] = {"p": probes, "q": probes}


def residuals(labels: list[float], *, only: tuple[str, ...] = ()) -> Change:
    def apply(content: Content, folder: Path) -> None:
        tasks(graded, {"kind": "embed", "method": "mean"})(content, folder)
        held = {"method": "method", "labels": labels, "tasks": only}
        content["report"] = {"title": "t", "residuals": [held]}

    return apply


def damaged(content: Content, folder: Path) -> None:
    copy = folder / "backbone"
    shutil.copytree(content["backbone"]["source"], copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    content["backbone"] = {"source": str(copy)}


def pretrained(head: Content, **encoders: int) -> Change:
    def apply(content: Content, folder: Path) -> None:
        content["tasks"] = {"task": graded(folder)}
        content["pretrainings"] = {
            "ae": {"task": "task", "autoencoder": {"encoders": encoders, "seed": 0}}
        }
        content["methods"] = {"method": {**FROZEN, "head": head, "encoders": "ae"}}

    return apply


def asked(kind: str, model_type: str = "llama", words: str = "snow", **method: Any) -> Change:
    """A probe of tokens on a decoder: llama's has an unembedding that is not saved, gpt2's is tied."""

    def apply(content: Content, folder: Path) -> None:
        content["backbone"] = {"source": str(save_model(model_type, folder / "decoder"))}
        rows = [{"text": f"{words}{i}", "label": i % 3} for i in range(10, 50)]
        content["tasks"]["probed"] = one_file(folder / "probed", rows)
        content["methods"]["method"] = {**HEAD, "tasks": ["task"]}
        content["probes"] = {"p": {"kind": kind, "tasks": ["probed"], "methods": {"curve": method}}}

    return apply


def unknown(kind: str, model_type: str = "llama", **method: Any) -> Change:
    """As `asked`, of texts with a token that was added to the tokenizer alone."""

    def apply(content: Content, folder: Path) -> None:
        asked(kind, model_type, "snow <extra>", **method)(content, folder)
        decoder = folder / "decoder"
        tokenizer = AutoTokenizer.from_pretrained(decoder)
        n_known = json.loads((decoder / "config.json").read_text())["vocab_size"]
        tokenizer.add_tokens([f"<more{i}>" for i in range(n_known - len(tokenizer))])
        tokenizer.add_tokens(["<extra>"])
        tokenizer.save_pretrained(decoder)

    return apply


UNKNOWN = "has the token '<extra>', .* added to the tokenizer alone"


def short(change: Change, max_length: int) -> Change:
    def apply(content: Content, folder: Path) -> None:
        change(content, folder)
        content["backbone"]["max_length"] = max_length

    return apply


def scored(content: Content, folder: Path) -> None:
    evaluated(content, folder)
    content["evaluations"]["e"]["tasks"]["sts"]["main_score"] = "spearmann"


def evaluated(content: Content, folder: Path) -> None:
    pq.write_table(pa.table({"a": ["ice"], "b": ["snow"], "score": [1]}), folder / "test.parquet")
    local = {"kind": "local", "type": "sts", "path": str(folder)}
    content["methods"]["embed"] = {"kind": "embed", "method": "mean"}
    content["evaluations"] = {"e": {"tasks": {"sts": local}}}


REFUSED: dict[str, tuple[Change, str]] = {
    "one file, no test": (
        tasks(classes, test={"kind": "given"}),
        r"has no test examples \(its splits: dev, train\).*test: \{kind: from_train, fraction: 0.2\}",
    ),
    "one file, no test, control": (
        tasks(classes, {"kind": "bag_of_words"}, test={"kind": "given"}),
        r"needs the splits train, dev, test, but the corpus has train, dev",
    ),
    "no dev": (tasks(classes, dev={"kind": "given"}), "has no dev examples"),
    "no dev, linear": (
        tasks(classes, {"kind": "linear"}, dev={"kind": "given"}),
        r"has no dev examples .*while checking 'linear method · task'",
    ),
    "a test split that would be empty": (
        tasks(classes, test=TEST | {"fraction": 0.001}),
        "leaves test empty",
    ),
    "no such column": (
        tasks(classes, columns={"label": "class"}),
        "has no column 'class'; its columns are 'text', 'label'",
    ),
    "no such file": (
        tasks(classes, files={"train": "nowhere.csv"}),
        "there is no file nowhere.csv",
    ),
    "f1 of three classes": (
        tasks(classes, {**HEAD, "metric": "f1"}),
        "metric f1 is that of class 1 of two, but the corpus has 3 classes",
    ),
    "f1 of three classes, control": (
        tasks(classes, {"kind": "length", "metric": "f1"}),
        "metric f1 is that of class 1 of two",
    ),
    "nothing to train": (
        tasks(pairs, {**HEAD, "loss": CONTRASTIVE}),
        "has no parameters and loss contrastive adds none",
    ),
    "a batch of one pair": (
        tasks(
            pairs,
            {
                **HEAD,
                "head": {"kind": "scorer"},
                "loss": CONTRASTIVE,
                "optim": {"batch_size": 1},
            },
        ),
        "optim.batch_size is 1",
    ),
    "no hard negatives": (
        tasks(
            pairs,
            {
                **HEAD,
                "head": {"kind": "scorer"},
                "loss": {**CONTRASTIVE, "hard_negatives": "add"},
            },
        ),
        "loss.hard_negatives is 'add', but no train example",
    ),
    "heads that do not divide the width": (
        tasks(classes, {**HEAD, "head": {"kind": "adapool", "heads": 5}}),
        "5",
    ),
    "a class of torch-geometric that does not go with the width": (
        tasks(
            classes,
            {
                **HEAD,
                "head": {
                    "kind": "pyg_pool",
                    "name": "SetTransformerAggregation",
                    "args": {"heads": 5},
                },
            },
        ),
        "SetTransformerAggregation takes channels",
    ),
    "a layer that is not captured": (
        tasks(classes, {**HEAD, "layer": "hidden/3"}),
        r"reads hidden/3 \(hidden/last is the same\), but the experiment captures only",
    ),
    "a layer that is written as a capture": (
        tasks(classes, {**HEAD, "layer": "hidden/1@mean"}),
        r"reads hidden/1@mean, which is how 'capture' names it; .*write layer: pooled/hidden_mean/1$",
    ),
    "vectors without test pairs": (
        tasks(graded, {"kind": "embed", "method": "mean"}, test={"kind": "given"}),
        "has the splits train, dev and no test pairs",
    ),
    "layers chosen without dev": (
        tasks(graded, {"kind": "embed", "method": "mean", "layers": "auto"}, dev={"kind": "given"}),
        "layers 'auto' and 'best' are chosen on graded pairs of a dev split",
    ),
    "whitening to more than there is": (
        tasks(
            graded,
            {"kind": "embed", "method": "mean", "whitening": {"n_components": 64}},
        ),
        "whitening to 64 components was asked for, but 58 training texts",
    ),
    "whitening to more than the width": (
        tasks(
            graded,
            {"kind": "embed", "method": "va", "whitening": {"n_components": 40}},
        ),
        "whitening to 40 components was asked for, but the vectors have the width 32",
    ),
    "pair heads without test": (
        tasks(graded, FROZEN, test={"kind": "given"}),
        "scored on test, but the corpus has train, dev",
    ),
    "labels outside their range": (
        tasks(graded, {**FROZEN, "label_range": [0, 5]}),
        r"train labels lie outside label_range, which is 0 to 5 \(the first is 8\)",
    ),
    "labels on another scale": (
        tasks(graded, {**FROZEN, "label_range": [0, 100]}),
        r"train labels go from 0 to 9, but label_range from 0 to 100, .* as in label_range: \[0, 9\]",
    ),
    "a range upside down": (
        tasks(graded, {**FROZEN, "label_range": [5, 5]}),
        "label_range goes from 5 to 5",
    ),
    "residuals of grades outside their scale": (
        residuals([0, 5]),
        "residuals.0.labels is 0 to 5, but the test grades of 'task' go from 0 to 7, .* give the lowest",
    ),
    "residuals of grades below their scale": (
        residuals([1, 7], only=("task",)),
        "residuals.0.labels is 1 to 7, but the test grades of 'task' go from 0 to 7",
    ),
    "residuals of no task of the method": (
        residuals([0, 7], only=("other",)),
        "residuals.0 names the task 'other'; 'method' is scored on task",
    ),
    "encoders for a head without": (
        pretrained({"kind": "cosine_mlp"}),
        "the head cosine_mlp cannot start from pretrained encoders",
    ),
    "encoders of another size": (
        pretrained({"kind": "autoencoder_siamese"}, early=7),
        "do not fit the head's",
    ),
    "layer probe without test": (
        probe(graded, "layers", {"method": "mean"}, test={"kind": "given"}),
        "no test pairs",
    ),
    "task score without dev": (
        probe(classes, "task_score", {"at": "mean"}, dev={"kind": "given"}),
        "in the splits train, dev, test, but this is a corpus of kind classification with train, test",
    ),
    "next token on an encoder": (probe(classes, "next_token", {}), "use a decoder"),
    "logit lens on an encoder": (probe(classes, "logit_lens", {}), "use a decoder"),
    "no unembedding": (
        asked("next_token"),
        "holds no unembedding .*save the model with its language model head",
    ),
    "no unembedding for a lens": (asked("logit_lens", min_words=1), "holds no unembedding"),
    "too few tokens for an offset": (
        asked("next_token", "gpt2", offset=6),
        "no text of the split 'train' has a token 6 tokens after another one",
    ),
    "too few tokens for an offset of a lens": (
        asked("logit_lens", "gpt2", min_words=1, offsets=[1, 40]),
        "no text has a token 40 tokens after another one",
    ),
    "too few tokens for a lens within max_length": (
        short(asked("logit_lens", "gpt2", min_words=1, offsets=[1, 5]), 4),
        "has a token 5 tokens after another one within max_length 4; raise max_length or leave",
    ),
    "too few tokens within max_length": (
        short(asked("next_token", "gpt2", offset=5), 4),
        "5 tokens after another one within max_length 4; give a larger max_length or a smaller offset",
    ),
    "a token without an embedding, lens": (unknown("logit_lens", "gpt2", min_words=1), UNKNOWN),
    "a token without an embedding, sensitivity": (unknown("sensitivity", min_words=1), UNKNOWN),
    "a token without an embedding, path bound": (unknown("path_bound", min_words=1), UNKNOWN),
    "a token without an embedding, map": (
        unknown("attention_map", text="snow <extra> ice"),
        UNKNOWN,
    ),
    "no such score": (
        scored,
        "main_score is 'spearmann', but tasks of type STS have spearman, cosine_spearman",
    ),
    "no text long enough": (
        probe(classes, "sensitivity", {"min_words": 900, "readouts": ["mean"]}),
        "has 900 words or more",
    ),
    "two curves of one name": (twice, "have two curves named 'curve' on 'probed'"),
    "a task that the axis does not know": (
        put(
            report={"title": "t", "x_axis": {"kind": "curve", "label": "x", "values": {"gone": 1}}}
        ),
        "report.x_axis.values places the task 'gone', but there are results of task",
    ),
    "no backbone is read": (
        lambda content, _: (
            content.pop("capture"),
            content.update(methods={"l": {"kind": "length"}}),
        ),
        "no method or probe of this experiment reads a backbone",
    ),
    "no such device": (put(runtime={"device": "cuda:63"}), "cuda:63"),
    "no such device for extraction": (put(runtime={"extract": {"device": "cuda:63"}}), "cuda:63"),
    "too long": (
        lambda content, folder: content.update(
            backbone={**content["backbone"], "max_length": 3},
            runtime={"extract": {"too_long": "refuse"}},
        ),
        "longer than max_length, which is 3 tokens",
    ),
    "damaged weights": (damaged, "the weights in .* cannot be loaded as a 'bert' model"),
    "evaluation data without its columns": (
        evaluated,
        "no column 'text'; its columns are 'a', 'b', 'score'",
    ),
}


def content_of(backbone: Path, folder: Path) -> Content:
    return {
        "name": "mine",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=1-2@tokens",
        "tasks": {"task": classes(folder)},
        "methods": {"method": HEAD},
        "seeds": [0],
        "report": {"title": "mine"},
        "runtime": {"extract": {"device": "cpu"}},
    }
