"""The arguments of the commands of python -m tokend."""

import argparse
import difflib


def meant(name, known):
    """The word that a mistyped one may mean, as part of an error; "" if none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


class Parser(argparse.ArgumentParser):
    """Prints one line for an error, and knows which option was meant."""

    def __init__(self, **keys):
        super().__init__(allow_abbrev=False, **keys)

    def parse_args(self, args=None, namespace=None):
        given, more = self.parse_known_args(args, namespace)
        if more:
            name = more[0].partition("=")[0]
            what = "unknown option" if name[:1] == "-" else "unexpected argument"
            self.error(f"{what} {name}{meant(name, self._option_string_actions)}")
        return given

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")
