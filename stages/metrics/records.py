"""What results are called and recorded as, where they are written and where they are read."""

from typing import Literal

Role = Literal["method", "baseline", "control"]
"""A control is given nothing from which the answer can be learnt: it must sit at chance. A baseline sees no
backbone, and is what a method has to beat."""
