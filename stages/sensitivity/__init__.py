"""How much a text's vector depends on each of its tokens: gradients through the frozen backbone.

Source: Hierarchical Token Prepending (HTP), section 3.1 and appendix A.
"""

from typing import TYPE_CHECKING

from permafrost.stages.late_names import late_names

if TYPE_CHECKING:
    from permafrost.stages.sensitivity.config import SensitivityConfig, require_differentiable
    from permafrost.stages.sensitivity.profile import SensitivityProfile
    from permafrost.stages.sensitivity.stage import measure_sensitivity

__getattr__ = late_names(__name__)

__all__ = [
    "SensitivityConfig",
    "SensitivityProfile",
    "measure_sensitivity",
    "require_differentiable",
]
