"""Real data and trained models, for optional checks.

Neither is part of the project, so a bare clone has neither and skips these checks; pytest's summary counts
them.
"""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("PERMAFROST_DATA", ""))
"""Folder of the datasets; of no use without the mark below."""
MODELS = Path(os.environ.get("PERMAFROST_MODELS", ""))
"""Folder of the models, likewise."""


def needs(*variables: str) -> pytest.MarkDecorator:
    """Skips where one of these environment variables is not set: users have neither these datasets nor these
    models, so nothing but optional checks may need them."""
    missing = [name for name in variables if not os.environ.get(name)]
    return pytest.mark.skipif(bool(missing), reason=f"optional: {' and '.join(missing)} not set")


needs_data = needs("PERMAFROST_DATA")
needs_models = needs("PERMAFROST_MODELS")
needs_both = needs("PERMAFROST_DATA", "PERMAFROST_MODELS")
