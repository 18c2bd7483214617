"""The README.md of an exported folder."""

from pathlib import Path

from permafrost.stages.encoder.answers import LinearAnswers, classes_known
from permafrost.stages.encoder.graph_text import FINETUNE
from permafrost.stages.encoder.load import LINEAR, FittedHead
from permafrost.stages.encoder.mteb_name import mteb_name
from permafrost.stages.encoder.plain_form import Use
from permafrost.stages.encoder.vectors import LatentVectors
from permafrost.stages.extraction.files import BackboneFiles

_LOADING = {
    "plain": """```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("{folder}").encode(["A text", "Another one"])
```

Nothing but `sentence-transformers` is needed.""",
    "module": """```python
from permafrost import load_exported

vectors = load_exported("{folder}").encode(["A text", "Another one"])
```

or through `sentence-transformers`, with Permafrost installed beside it:

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{folder}", trust_remote_code=True)
vectors = model.encode(["A text", "Another one"])
```

The library wants `trust_remote_code=True` for any class that is not its own; the class is that of the
installed Permafrost, and no code of this folder is run.""",
}

_EVALUATING = {
    "plain": """```python
import mteb
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{folder}")
model.model_card_data.model_name = "{name}"
model.model_card_data.base_model_revision = "{revision}"
results = mteb.evaluate(model, mteb.get_tasks(["STSBenchmark"]))
```

mteb stores results by name and revision, and models from folders have neither: without the two lines in the
middle, this one would be given the scores of the first one that was evaluated on the machine. The revision is
a digest of the files of this folder.""",
    "module": """```python
import mteb
from permafrost import mteb_encoder

model = mteb_encoder("{folder}")
results = mteb.evaluate(model, mteb.get_tasks(["STSBenchmark"]))
```

mteb stores results by name and revision. `mteb_encoder` gives both, the revision a digest of what makes the
vectors; a `SentenceTransformer` of a folder has neither, and would be given the scores of the first one that
was evaluated on the machine. A blank text has a vector of zeros.""",
}

_CLASSIFYING = {
    "plain classification": """```python
import torch
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{folder}")
logits = model.encode(["A text", "Another one"], convert_to_tensor=True)
probabilities = torch.softmax(logits, dim=1)
names = model[0].auto_model.config.id2label
```

Nothing but `sentence-transformers` is needed: column i of the probabilities is of the class `names[i]`.""",
    "plain pair_classification": """```python
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

model, layer = SentenceTransformer("{folder}"), load_file("{folder}/classifier/model.safetensors")
pairs = (["A text", "Another one"], ["Its pair", "The pair of that one"])
both = torch.cat([model.encode(side, convert_to_tensor=True) for side in pairs], dim=1)
logits = torch.nn.functional.linear(both.cpu(), layer["linear.weight"], layer["linear.bias"])
probabilities = torch.softmax(logits, dim=1)
names = model[0].auto_model.config.id2label
```

Nothing but `sentence-transformers` is needed: column i of the probabilities is of the class `names[i]`.""",
    "classification": """```python
from permafrost import load_exported

found = load_exported("{folder}").predict(["A text", "Another one"])
found.names, found.probabilities
```""",
    "pair_classification": """```python
from permafrost import load_exported

found = load_exported("{folder}").predict(["A text"], ["Its pair"])
found.names, found.probabilities
```""",
}

_WHAT = {
    "head": "A small head on a frozen backbone",
    "linear": "A linear classifier on vectors of a frozen backbone",
    "together": "A small head and its backbone, fine-tuned together",
}

_ROUNDING = {
    "plain": "Vectors are those of `permafrost embed` before features are rounded to the store's dtype.",
    "module": "Vectors are those of `permafrost embed`, features rounded to the store's dtype included.",
}


def model_card(
    fitted: FittedHead, form: str, folder: Path, use: Use = "vectors", revision: str | None = None
) -> str:
    """The README of an exported folder: what it is, how to load it, and what identifies it.

    Args:
        fitted: the head.
        form: `plain` or `module`.
        folder: the exported folder; only its name is used.
        use: what it is for.
        revision: of the plain form the digest of its files, see `files_digest`.
    """
    target, identity = fitted.target, fitted.target.identity
    trained = "together" if fitted.ref.stage == FINETUNE else "head"
    if fitted.ref.stage == LINEAR:
        trained = "linear"
    loading, tag = [_LOADING[form]], "sentence-similarity"
    if use == "classifier":
        loading, tag = _loading_classifier(fitted, form), "text-classification"
    rows = {
        "artifact": fitted.ref,
        "head": _head(fitted),
        "reads": ", ".join(target.arrays),
        "width of a vector": fitted.vectors.d_out,
        "backbone": f"{target.sizes.model_type}, found at {source_name(target.files)} when exported",
        "weights digest": identity.weights_digest,
        "tokenizer digest": identity.tokenizer_digest,
        "feature store": identity.store_id,
        "recipe": ", ".join(f"{k}={v}" for k, v in identity.recipe.items()),
        "max_length": f"{identity.max_length} tokens; longer texts lose their end",
        "computed in, features kept in": f"{identity.compute_dtype}, {identity.storage_dtype}",
    }
    shown = "\n\nor\n\n".join(text.format(folder=folder.name) for text in loading)
    evaluating = ""
    if use == "vectors":
        name = mteb_name(folder.name)
        text = _EVALUATING[form].format(folder=folder.name, name=name, revision=revision)
        evaluating = f"\n## Scores of mteb\n\n{text}\n"
    table = "\n".join(f"| {name} | `{value}` |" for name, value in rows.items())
    return f"""---
library_name: sentence-transformers
pipeline_tag: {tag}
tags:
- sentence-transformers
- permafrost
---

# {folder.name}

{_WHAT[trained]}, trained and exported by Permafrost. The backbone's weights are in this
folder and keep their own licence.

{shown}

{_ROUNDING[form]}

| what | value |
|---|---|
{table}
{evaluating}"""


def _loading_classifier(fitted: FittedHead, form: str) -> list[str]:
    assert not isinstance(fitted.vectors, LatentVectors), "heads with classes are of other kinds"
    task, _ = classes_known(fitted.vectors)
    plain = [_CLASSIFYING[f"plain {task}"]] if form == "plain" else []
    return [*plain, _CLASSIFYING[task]]


def _head(fitted: FittedHead) -> str:
    if isinstance(fitted.vectors, LatentVectors):
        return f"on the latents of every layer, {type(fitted.vectors.head.join).__name__}"
    if isinstance(fitted.vectors, LinearAnswers):
        model = fitted.vectors.model
        return (
            f"{model.classifier} classifier, c {model.c:g}, trained on a corpus of kind {model.task}; on "
            f"vectors by the method {fitted.vectors.config.method.kind}"
        )
    head = fitted.vectors.head
    return (
        f"{head.config.head.kind}, trained on a corpus of kind {head.facts.task}; epoch {head.epoch}, "
        f"{head.config.metric} on dev {head.dev:.4g}"
    )


def source_name(files: BackboneFiles) -> str:
    """A hub id or an alias; for a folder only its name, as paths mean nothing on another machine."""
    is_folder = Path(files.source).expanduser().is_dir()
    source = files.folder.name if is_folder else files.source
    return f"{source} @ {files.revision}" if files.revision else source
