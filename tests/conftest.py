"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, `ci` (the same examples every time) and
`nightly` (many more)."""

import os

from hypothesis import settings

# Deadlines measure the machine, not the code; pytest-timeout guards against hanging.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=2000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") == "true" else "default")
)
