"""A real browser: chromium without a window, over its debugging protocol on two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

from .wait import LONG, wait_for


class Browser:
    """One tab, with its messages of the console in `said`."""

    def __init__(self, place, url, width=1000, height=900):
        to, self.out = os.pipe()
        self.into, back = os.pipe()

        def pass_pipes():  # the protocol's descriptors are 3 and 4
            high = [os.dup(fd) for fd in (to, back)]
            while min(high) < 5:
                high = [os.dup(fd) for fd in high]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        # it runs as root, and loads only pages of the test
        options = "headless no-sandbox disable-gpu disable-dev-shm-usage no-first-run "
        options += "disable-background-networking disable-extensions hide-scrollbars "
        options += "remote-debugging-pipe"
        command = [shutil.which("chromium"), *(f"--{name}" for name in options.split())]
        command += [f"--window-size={width},{height}", f"--user-data-dir={place.file('b', 'x')}"]
        keys = {"preexec_fn": pass_pipes, "close_fds": False, "stderr": subprocess.DEVNULL}
        self.process = place.spawn(command, **keys)
        os.close(to)
        os.close(back)
        self.number, self.left, self.session, self.said = 0, b"", None, []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self(f"{domain}.enable")
        self("Page.navigate", url=url)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)

    def _message(self):
        until = time.monotonic() + LONG
        while b"\0" not in self.left:
            ready = select.select([self.into], [], [], max(0, until - time.monotonic()))[0]
            assert ready, "the browser answers"
            got = os.read(self.into, 1 << 20)
            assert got, "the browser is there"
            self.left += got
        text, _, self.left = self.left.partition(b"\0")
        return json.loads(text)

    def __call__(self, method, **params):
        """A command; returns its result."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.out, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.said.append(message["params"])

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def shows(self, expression):
        """Waits until the expression is true. Returns its value."""
        value = wait_for(lambda: self.value(expression), pause=0.05)
        assert value, (expression, self.value("document.body.innerText"), self.said)
        return value

    def rows(self, table):
        """The texts of the cells of a table's body."""
        return self.value(
            f"[...document.querySelectorAll('#{table} tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self("Page.captureScreenshot")["data"]))
