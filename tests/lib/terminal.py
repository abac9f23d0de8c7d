"""A real terminal, tmux's, that shows what a person would see."""

import os
import subprocess

from .wait import wait_for


class Terminal:
    """A bash in a window of 80 × 24 cells."""

    def __init__(self, place, columns=80, lines=24):
        self.socket = place.file("tmux")
        self.server = place.spawn(
            ["tmux", "-D", "-u", "-f", "/dev/null", "-S", self.socket], stderr=subprocess.DEVNULL
        )
        assert wait_for(lambda: os.path.exists(self.socket)), "tmux listens"
        shell = "exec env PS1='ready> ' LC_ALL=C.UTF-8 bash --norc --noprofile"
        self("new-session", "-d", "-x", columns, "-y", lines, shell)
        self.shows("ready>")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()

    def __call__(self, *arguments):
        """A command of tmux; returns what it prints."""
        command = ["tmux", "-u", "-S", self.socket, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def type(self, text):
        """A command line for the shell."""
        self("send-keys", "-l", text)
        self.press("Enter")

    def press(self, *keys):
        self("send-keys", *keys)

    def lines(self):
        return self("capture-pane", "-p").splitlines()

    def shows(self, *texts):
        """Waits until all texts are on the screen. Returns its lines."""

        def shown():
            lines = self.lines()
            return all(text in "\n".join(lines) for text in texts) and lines

        lines = wait_for(shown, pause=0.02)
        assert lines, (f"the terminal shows {texts}", self.lines())
        return lines

    def resize(self, columns, lines):
        self("resize-window", "-x", columns, "-y", lines)
