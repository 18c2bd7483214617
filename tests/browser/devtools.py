"""One headless Chromium, driven over a pair of pipes in the DevTools protocol.

Messages are JSON, each ended by a zero byte; the browser reads descriptor 3 and writes descriptor 4.
"""

import base64
import fcntl
import io
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

Scheme = Literal["light", "dark"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_FREE_FD = 10
"""Below are those that the browser wants; ours must not be among them when they are copied there."""


def find_browser() -> str | None:
    """Path of the first browser that is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(Exception):
    """The browser answered with an error, or not at all."""


class Browser:
    """One page in one browser, with what it logged and what it loaded."""

    def __init__(self, path: str, profile: Path) -> None:
        to_read, self._to_browser = os.pipe()
        self._from_browser, to_write = os.pipe()
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FREE_FD) for fd in (to_read, to_write)]
        os.close(to_read)
        os.close(to_write)
        log = str(profile.with_suffix(".log"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._pid = os.posix_spawn(
            path,
            [path, *_FLAGS, f"--user-data-dir={profile}"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, ends[0], 3),
                (os.POSIX_SPAWN_DUP2, ends[1], 4),
                (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setpgroup=0,
        )
        for end in ends:
            os.close(end)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        """Open a tab of our own and hear what it reports."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and everything that it started."""
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._to_browser)
        os.close(self._from_browser)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        sent = json.dumps(message).encode() + b"\0"
        while sent:
            sent = sent[os.write(self._to_browser, sent) :]
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(
        self, page: Path, width: int = 1100, scheme: Scheme = "light", height: int = 900
    ) -> None:
        """Load a file and wait until it is there; events of earlier pages are dropped."""
        self.show_as(width, scheme, height)
        self.events.clear()
        answer = self.send("Page.navigate", url=page.resolve().as_uri())
        if "errorText" in answer:
            raise BrowserError(f"{page}: {answer['errorText']}")
        while not self.has("Page.loadEventFired"):
            self.events.append(self._receive("the end of loading"))
        self.send("Runtime.evaluate", expression="document.fonts.ready", awaitPromise=True)

    def show_as(self, width: int, scheme: Scheme, height: int = 900) -> None:
        """Give the page another width (in CSS pixels) or colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> np.ndarray:
        """What the window shows, `[height, width, 3]` uint8; also written to `path`."""
        answer = self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            return np.asarray(picture.convert("RGB"))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF")["data"])

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press and release a key."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **common)

    def press_enter(self) -> None:
        """Press and release Enter, which also types a character."""
        common = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def has(self, method: str) -> bool:
        """Whether an event of this kind has come."""
        return any(event.get("method") == method for event in self.events)

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """What came with the events of this kind."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def complaints(self) -> list[str]:
        """Everything that the page has written to the console, and errors of its scripts."""
        said = [str(p["args"]) for p in self.of("Runtime.consoleAPICalled")]
        said += [str(p["exceptionDetails"]) for p in self.of("Runtime.exceptionThrown")]
        return said + [str(p["entry"]["text"]) for p in self.of("Log.entryAdded")]

    def requests(self) -> list[str]:
        """URLs that were asked for."""
        return [p["request"]["url"] for p in self.of("Network.requestWillBeSent")]

    def _receive(self, awaited: str) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select(
                [self._from_browser], [], [], max(deadline - time.monotonic(), 0.0)
            )
            found = os.read(self._from_browser, 1 << 16) if ready else b""
            if not found:
                raise BrowserError(f"no answer from the browser while waiting for {awaited}")
            self._buffer += found
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
