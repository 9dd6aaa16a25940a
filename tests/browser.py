"""A page in headless Chromium, driven over a pipe by Chrome's DevTools protocol: no package, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-component-update "
    "--disable-default-apps --disable-extensions --disable-sync --no-first-run --no-default-browser-check --hide-scrollbars "
    "--remote-debugging-pipe"
).split()
_PATIENCE = 60.0  # seconds
_ADVICE = ("deprecation", "intervention", "recommendation")  # log entries of the browser's own plans, others in each version


def browser_path() -> str | None:
    """Return the path of the first browser found, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@dataclass
class Browser:
    """A running browser: messages are JSON, ended by a zero byte."""

    process: subprocess.Popen[bytes]
    write: int
    read: int
    number: int = 0
    rest: bytes = b""
    events: list[dict[str, Any]] = field(default_factory=list)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer; other messages go to `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Wait until an event of that name has come."""
        deadline = time.monotonic() + _PATIENCE
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next(deadline))

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer from the browser within {_PATIENCE:g} s"
            chunk = os.read(self.read, 1 << 20)
            assert chunk, "the browser has ended"
            self.rest += chunk
        message, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@dataclass
class Page:
    """One tab."""

    browser: Browser
    session: str

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a script."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 900, dark: bool = False, scale: float = 1.0) -> None:
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, anchor: str = "") -> None:
        """Load the page again, at an anchor such as "#tables"."""
        self.browser.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.browser.wait_for("Page.loadEventFired")
        self.browser.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri() + anchor)
        self.browser.wait_for("Page.loadEventFired")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key on the focused element; `text` is what it types."""
        typed = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_within(self, selector: str, share: float) -> None:
        """Click at that share of an element's width, scrolled into view first."""
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({behavior: 'instant', block: 'center'}); "
            "const b = e.getBoundingClientRect(); return [b.left, b.width, b.top + b.height / 2]; })()"
        )
        self.click(place[0] + share * place[1], place[2])

    def screenshot(self, path: Path) -> None:
        """Save an image of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def complaints(self) -> list[str]:
        """Return errors and warnings so far: of the console, of scripts, of the content security policy."""
        found = []
        for event in self.browser.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            entry = params.get("entry", {})
            if method == "Log.entryAdded" and entry["level"] in ("error", "warning") and entry["source"] not in _ADVICE:
                found.append(entry["text"])
        return found

    def requests(self) -> list[str]:
        """Return the URLs that the page requested, but for its own file and data URIs."""
        sent = [event["params"] for event in self.browser.events if event.get("method") == "Network.requestWillBeSent"]
        urls = [each["request"]["url"] for each in sent if each["request"]["url"] != each["documentURL"]]
        return [url for url in urls if not url.startswith("data:")]


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """Open a tab in a new browser whose profile is in `folder`."""
    path = browser_path()
    assert path is not None
    (their_read, our_write), (our_read, their_write) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (their_read, their_write)]  # clear of 3 and 4
    start = f"import os, sys; os.dup2({high[0]}, 3); os.dup2({high[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", start, path, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        command, pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for end in (their_read, their_write, *high):
        os.close(end)
    browser = Browser(process, our_write, our_read)
    try:
        yield _tab(browser)
        browser.call("Browser.close")
    finally:
        for end in (our_write, our_read):
            os.close(end)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tab(browser: Browser) -> Page:
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    page = Page(browser, session)
    for domain in ("Page", "Runtime", "Log", "Network"):
        page.call(f"{domain}.enable")
    return page
