"""Reports without their pictures, for tests that look at something else: drawing takes longest."""

import pytest
from markupsafe import Markup

from permafrost.stages.report import canvas


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that a test makes are empty. What a module's fixture makes is drawn, and so is what a test
    marked `drawn` makes."""
    if not request.node.get_closest_marker("drawn"):
        monkeypatch.setattr(canvas, "png", lambda figure: b"\x89PNG\r\n\x1a\n")
        monkeypatch.setattr(canvas, "svg", lambda *_: canvas.InlineSvg(Markup("<svg/>")))
