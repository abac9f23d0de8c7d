"""The line of progress of a run of tokend.tokenize."""

import sys
import time


class Progress:
    def __init__(self, total, shown):
        self.total, self.shown = total, shown
        self.begin = self.last = time.monotonic()
        self.first = None
        self.characters = self.read = 0

    def seconds(self):
        return time.monotonic() - self.begin

    def rate(self):
        return self.characters / 1e6 / max(self.seconds(), 1e-9)

    def add(self, before, count, characters):
        self.characters += characters
        self.read = before
        self.first = before if self.first is None else self.first
        now = time.monotonic()
        if not self.shown or now - self.last < 0.2:
            return
        self.last = now
        read = before - self.first
        left = (self.total - before) * self.seconds() / read if read > 0 else None
        eta = (
            ""
            if left is None
            else f", {int(left) // 3600}:{int(left) // 60 % 60:02}:{int(left) % 60:02} left"
        )
        self.say(f"{count.documents} documents, {count.tokens} tokens, {self.rate():.1f} MB/s{eta}")

    def say(self, text):
        if self.shown:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
