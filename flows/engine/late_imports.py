"""What nodes import when they run, imported before several run side by side.

Modules of scikit-learn, of mteb and of transformers import each other in circles. A thread that imports one
while another thread is in the middle of them finds a module half made and fails. Commands that run no node
never import these.
"""

from collections.abc import Iterable
from importlib import import_module

EVERY_STAGE = (
    "torch",
    "sklearn.exceptions",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "sklearn.preprocessing",
    "sklearn.svm",
    "scipy.sparse.csgraph",
    "scipy.special",
    "scipy.stats",
)
_MODELS = (
    "transformers.integrations.sdpa_attention",
    "transformers.masking_utils",
    "transformers.pytorch_utils",
)
OF_STAGE = {
    "evaluate": ("mteb.abstasks",),
    "extract": _MODELS,
    "layers": ("mteb.abstasks",),
    "finetune": (*_MODELS, "peft", "peft.utils"),
}
"""Of nodes of some stages alone, as they take seconds."""


def import_late_libraries(stages: Iterable[str]) -> None:
    """Import what nodes of these stages import in their threads; call it where there is one thread."""
    for name in (
        *EVERY_STAGE,
        *(name for stage in set(stages) for name in OF_STAGE.get(stage, ())),
    ):
        import_module(name)
