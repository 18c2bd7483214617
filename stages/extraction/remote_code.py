"""Classes that a backbone's files name beside transformers' own, in Python files of the same folder.

They are never run, so a model whose states they would compute otherwise is refused. Where they only have the
names of transformers' own (Phi-3, whose code was on the hub before it was in transformers), nothing differs.
"""

from pathlib import Path
from typing import Any, cast

import transformers

from permafrost.stages.extraction.checkpoint import read_object
from permafrost.stages.extraction.files import CONFIG, TOKENIZER_CONFIG, read_config
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_FIELD = "auto_map"
_MAPPINGS = {
    "AutoConfig": None,
    "AutoModel": "MODEL_MAPPING",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING",
}
"""What config.json may name, and where transformers has its own."""


def require_own_model(model_type: str, folder: Path) -> None:
    """Check the classes of settings and model that config.json names.

    Args:
        model_type: one that transformers has.
        folder: of the backbone.

    Raises:
        InputError: one is not the class that transformers has for `model_type`.
    """
    named = read_config(folder).get(_FIELD)
    if not isinstance(named, dict):
        return
    config = transformers.CONFIG_MAPPING[model_type]
    for auto, mapping in _MAPPINGS.items():
        given = cast(dict[str, Any], named).get(auto)
        if given is None:
            continue
        own = config if mapping is None else getattr(transformers, mapping).get(config, None)
        if own is None or _class_name(given) == (name := own.__name__):
            continue
        raise InputError(
            f"{folder / CONFIG} names the class {quoted(given)} ({_FIELD}, {auto}), which is remote code and "
            f"never run; {name}, which transformers has for {quoted(model_type)}, may compute something "
            f"else. If {name} is what you mean, save the model with it, or take {auto} out of {_FIELD}"
        )


def require_own_tokenizer(folder: Path) -> None:
    """Check the tokenizer's classes that tokenizer_config.json names, the slow and the fast one.

    Raises:
        InputError: one has not the name of a tokenizer of transformers.
    """
    path = folder / TOKENIZER_CONFIG
    named: Any = read_object(path).get(_FIELD) if path.is_file() else None
    if isinstance(named, dict):
        named = cast(dict[str, Any], named).get("AutoTokenizer")
    for given in cast(list[Any], named) if isinstance(named, list) else [named]:
        if given is None or _is_tokenizer(_class_name(given)):
            continue
        raise InputError(
            f"{path} names the class {quoted(given)} ({_FIELD}, AutoTokenizer), which is remote code and "
            "never run; transformers' own may give other tokens. If the vocabulary files beside it are all "
            f"that it needs, save the tokenizer with a class of transformers, or take {_FIELD} out"
        )


def _class_name(reference: object) -> str:
    """Of `module.Class` or `org/repo--module.Class`."""
    return str(reference).rpartition(".")[2]


def _is_tokenizer(name: str) -> bool:
    found = getattr(transformers, name, None)
    return isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerBase)
