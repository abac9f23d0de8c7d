"""Checking texts."""


class has:
    """True if @text contains all @words; otherwise its repr() names the missing ones."""

    def __init__(self, text, *words):
        self.text = text
        self.missing = [word for word in words if word not in text]

    def __bool__(self):
        return not self.missing

    def __repr__(self):
        return f"{self.missing} not in {self.text!r}" if self.missing else "all there"
