"""The README.md of an exported folder."""

from pathlib import Path

from permafrost.stages.encoder.load import FittedHead
from permafrost.stages.encoder.vectors import LatentVectors

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

_ROUNDING = {
    "plain": "Vectors are those of `permafrost embed` before features are rounded to the store's dtype.",
    "module": "Vectors are those of `permafrost embed`, features rounded to the store's dtype included.",
}


def model_card(fitted: FittedHead, form: str, folder: Path) -> str:
    """The README of an exported folder: what it is, how to load it, and what identifies it.

    Args:
        fitted: the head.
        form: `plain` or `module`.
        folder: the exported folder; only its name is used.
    """
    target, identity = fitted.target, fitted.target.identity
    rows = {
        "artifact": fitted.ref,
        "head": _head(fitted),
        "reads": ", ".join(target.arrays),
        "width of a vector": fitted.vectors.d_out,
        "backbone": f"{target.sizes.model_type}, found at {_source(fitted)} when exported",
        "weights digest": identity.weights_digest,
        "tokenizer digest": identity.tokenizer_digest,
        "feature store": identity.store_id,
        "recipe": ", ".join(f"{k}={v}" for k, v in identity.recipe.items()),
        "max_length": f"{identity.max_length} tokens; longer texts lose their end",
        "computed in, features kept in": f"{identity.compute_dtype}, {identity.storage_dtype}",
    }
    table = "\n".join(f"| {name} | `{value}` |" for name, value in rows.items())
    return f"""---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- permafrost
---

# {folder.name}

A small head on a frozen backbone, trained and exported by Permafrost. The backbone's weights are in this
folder and keep their own licence.

{_LOADING[form].format(folder=folder.name)}

{_ROUNDING[form]}

| what | value |
|---|---|
{table}
"""


def _head(fitted: FittedHead) -> str:
    if isinstance(fitted.vectors, LatentVectors):
        return f"on the latents of every layer, {type(fitted.vectors.head.join).__name__}"
    head = fitted.vectors.head
    return (
        f"{head.config.head.kind}, trained on a corpus of kind {head.facts.task}; epoch {head.epoch}, "
        f"{head.config.metric} on dev {head.dev:.4g}"
    )


def _source(fitted: FittedHead) -> str:
    """A hub id or an alias; for a folder only its name, as paths mean nothing on another machine."""
    files = fitted.target.files
    is_folder = Path(files.source).expanduser().is_dir()
    source = files.folder.name if is_folder else files.source
    return f"{source} @ {files.revision}" if files.revision else source
