"""A driver of the system's Chromium over the DevTools protocol: real keys, drags, touches, drops
and downloads. The protocol runs over two pipes: no port is open, and the browser ends with us."""

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from made_runs import until

PATIENCE = 120  # seconds for anything that the browser does
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = (
    "--headless --remote-debugging-pipe --no-first-run --no-default-browser-check --mute-audio"
    " --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-sync"
    " --disable-component-update --disable-extensions --password-store=basic --no-sandbox"
)
# code and number
KEYS = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


@contextmanager
def chromium(folder):
    """A `Browser` with one page. Downloads are in `folder/downloads`; all else that it writes is
    removed when it is killed at the end. The path of its socket must be short."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("Chromium is not installed")
    downloads = Path(folder, "downloads")
    downloads.mkdir(parents=True)
    home = tempfile.mkdtemp(dir="/tmp")
    to_browser = os.pipe()
    from_browser = os.pipe()
    line = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    arguments = SWITCHES.split() + [f"--user-data-dir={home}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", line, program, *arguments],
        pass_fds=(to_browser[0], from_browser[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": home, "XDG_CONFIG_HOME": home, "TMPDIR": home},
        start_new_session=True,
    )
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Browser(from_browser[0], to_browser[1], downloads)
    finally:
        os.close(to_browser[1])
        os.close(from_browser[0])
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


class Browser:
    """A page of the browser. `errors` holds what was written to its console as an error or a
    warning: exceptions, violations of a content security policy, files that did not load."""

    def __init__(self, read, write, downloads):
        self.read = read
        self.write = write
        self.downloads = downloads
        self.errors = []
        self.loaded = False
        self.session = None
        self.received = b""
        self.numbers = itertools.count(1)
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in targets if each["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.send(f"{domain}.enable")
        self.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        self.screen(1280, 800)

    def send(self, method, **params):
        """Call a method of the DevTools protocol; its result."""
        message = {"id": next(self.numbers), "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self.write, content) :]
        while True:
            answer = self._receive()
            if answer.get("id") == message["id"]:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _receive(self):
        """The next message; notes what events tell."""
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.read], [], [], PATIENCE)
            chunk = os.read(self.read, 1 << 20) if ready else b""
            assert chunk, "Chromium does not answer"
            self.received += chunk
        message, _, self.received = self.received.partition(b"\0")
        message = json.loads(message)
        params = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self.loaded = True
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.errors.append(details.get("exception", details).get("description", details))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(" ".join(str(each.get("value")) for each in params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
        return message

    def open(self, address):
        """Load a file or an address, until everything in it has loaded."""
        if "://" not in str(address):
            address = Path(address).resolve().as_uri()
        self.loaded = False
        answer = self.send("Page.navigate", url=str(address))
        assert "errorText" not in answer, answer["errorText"]
        while not self.loaded:
            self._receive()

    def evaluate(self, script):
        """The value of an expression, of a promise its result."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script):
        """Evaluate until the value is true; the value. Not after an error."""
        return until(lambda: self.evaluate(script), script, lambda: self.errors or None)

    def press(self, *keys):
        """Press keys one after the other: "a", "Tab", "Control+z"."""
        for key in keys:
            *held, key = key.split("+") if len(key) > 1 else [key]
            modifiers = sum(MODIFIERS[each] for each in held)
            number = KEYS.get(key) or ord(key.upper())
            event = {"key": key, "windowsVirtualKeyCode": number, "modifiers": modifiers}
            event["code"] = key if key in KEYS else f"Key{key.upper()}"
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            if text and set(held) <= {"Shift"}:
                self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            else:
                self.send("Input.dispatchKeyEvent", type="rawKeyDown", **event)
            self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def box(self, selector):
        """left, top, width and height of the first match in the window, scrolled into view, once
        it stands still: a new size of the window moves things with the next frame."""
        find = f"document.querySelector({json.dumps(selector)})"
        return self.wait(
            "(async () => {"
            f" const measure = () => {{ const r = {find}?.getBoundingClientRect();"
            " return r && [r.left, r.top, r.width, r.height]; };"
            f" {find}?.scrollIntoView({{block: 'nearest'}}); const before = measure();"
            " await new Promise(requestAnimationFrame); const after = measure();"
            " return String(before) === String(after) ? after : null; })()"
        )

    def middle(self, selector):
        left, top, width, height = self.box(selector)
        return left + width / 2, top + height / 2

    def _mouse(self, kind, point, buttons):
        x, y = point
        event = {"type": kind, "x": x, "y": y, "buttons": buttons, "clickCount": 1}
        event["button"] = "none" if kind == "mouseMoved" and not buttons else "left"
        self.send("Input.dispatchMouseEvent", **event)

    def click(self, selector):
        self.drag(self.middle(selector))

    def drag(self, *points):
        """Press the mouse at the first point, move it over the others, release it at the last."""
        self._mouse("mouseMoved", points[0], 0)
        self._mouse("mousePressed", points[0], 1)
        for point in points[1:]:
            self._mouse("mouseMoved", point, 1)
        self._mouse("mouseReleased", points[-1], 0)

    def touch(self, *paths):
        """Put down one finger for each path, lead them over its points, and lift them."""
        kind = "touchStart"
        for points in zip(*paths, strict=True):
            touches = [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=touches)
            kind = "touchMove"
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def drop(self, selector, *files):
        """Drag files from outside onto an element."""
        x, y = self.middle(selector)
        data = {"items": [], "files": list(map(str, files)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def choose(self, selector, *files):
        """Choose files in an `<input type="file">`."""
        found = self.send("Runtime.evaluate", expression=f"document.querySelector({selector!r})")
        files = list(map(str, files))
        self.send("DOM.setFileInputFiles", objectId=found["result"]["objectId"], files=files)

    def downloaded(self, name):
        """The path of a finished download."""
        path = self.downloads / name
        until(lambda: path.is_file() and not list(self.downloads.glob("*.crdownload")), name)
        return path

    def screen(self, width, height, touch=False):
        """Emulate a screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        points = {"maxTouchPoints": 5} if touch else {}
        self.send("Emulation.setTouchEmulationEnabled", enabled=touch, **points)
