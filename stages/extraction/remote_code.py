"""Classes that a backbone's files name beside transformers' own, in Python files of the same folder.

They are never run, so a model whose states or tokens they may compute otherwise is refused, whatever they
are called: a Qwen2Model beside transformers' own may attend in both directions. Of Phi-3's it is known that
transformers took them over.
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
_KNOWN_ALIKE = ("phi3",)
"""Types whose remote code is what transformers took over, under the same names."""


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
        own = config if mapping is None else getattr(transformers, mapping).get(config, None)
        if given is None or own is None:
            continue
        # Settings are read by name; of a model's code the name says nothing.
        is_same = mapping is None or model_type in _KNOWN_ALIKE
        if is_same and _class_name(given) == own.__name__:
            continue
        raise InputError(
            f"{folder / CONFIG} names the class {quoted(given)} ({_FIELD}, {auto}), which is remote code and "
            f"never run; transformers' own {own.__name__} for {quoted(model_type)} may compute something "
            f"else. If that is what you mean, save the model with it, or take {auto} out of {_FIELD}"
        )


def require_own_tokenizer(folder: Path) -> None:
    """Check that tokenizer_config.json names no tokenizer's class, neither a slow nor a fast one.

    Raises:
        InputError: it does.
    """
    path = folder / TOKENIZER_CONFIG
    named: Any = read_object(path).get(_FIELD) if path.is_file() else None
    if isinstance(named, dict):
        named = cast(dict[str, Any], named).get("AutoTokenizer")
    for given in cast(list[Any], named) if isinstance(named, list) else [named]:
        if given is None:
            continue
        raise InputError(
            f"{path} names the class {quoted(given)} ({_FIELD}, AutoTokenizer), which is remote code and "
            "never run; transformers' own may give other tokens. If the vocabulary files beside it are all "
            f"that it needs, save the tokenizer with a class of transformers, or take {_FIELD} out"
        )


def _class_name(reference: object) -> str:
    """Of `module.Class` or `org/repo--module.Class`."""
    return str(reference).rpartition(".")[2]
