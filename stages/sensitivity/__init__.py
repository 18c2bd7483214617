"""How much a text's vector depends on each of its tokens: gradients through the frozen backbone.

Source: Hierarchical Token Prepending (HTP), section 3.1 and appendix A.
"""

from permafrost.stages.sensitivity.profile import SensitivityProfile
from permafrost.stages.sensitivity.stage import (
    SensitivityConfig,
    measure_sensitivity,
    require_differentiable,
)

__all__ = [
    "SensitivityConfig",
    "SensitivityProfile",
    "measure_sensitivity",
    "require_differentiable",
]
