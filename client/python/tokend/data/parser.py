"""What the commands of python -m tokend share: arguments, progress, and running tokctl."""

import argparse
import difflib
import json
import subprocess
import sys

from .._tokend import program
from ..errors import Error


def meant(name, known):
    """The word that a mistyped one may mean, as part of an error; "" if none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else ""


class Parser(argparse.ArgumentParser):
    """Prints one line for an error, and knows which option was meant."""

    def __init__(self, **keys):
        super().__init__(allow_abbrev=False, **keys)

    def parse_args(self, args, namespace=None):
        # in any order, but then argparse does not let "--" end the options
        end = args.index("--") if "--" in args else len(args)
        names = [f"./{name}" if name[:1] == "-" else name for name in args[end + 1 :]]
        given, more = self.parse_known_intermixed_args([*args[:end], *names], namespace)
        if more:
            name = more[0].partition("=")[0]
            what = "unknown option" if name[:1] == "-" else "unexpected argument"
            self.error(f"{what} {name}{meant(name, self._option_string_actions)}")
        return given

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def positive(text):
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "number ≥ 1"  # argparse's error names it


def progress(text=""):
    """Replaces the line of progress, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def printable(text):
    """Data and paths must not control the terminal."""
    keep = "\t\n"
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def quoted(value):
    """As JSON that is YAML, too: there U+0085 and U+2028 would end a line."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def output_of(name, *arguments, statuses=(0,)):
    """Returns what tokend or tokctl prints. Raises Error with the last line that it says."""
    command = [program(name), *arguments]
    keys = {"capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run(command, check=False, **keys)
    if done.returncode not in statuses:
        said = (done.stderr or done.stdout).strip().split("\n")[-1].removeprefix(f"{name}: ")
        raise Error(said or f"{name}: exit status {done.returncode}")
    return done.stdout


def tokctl(*arguments, statuses=(0,)):
    """Returns the JSON objects that a tokctl command prints."""
    lines = output_of("tokctl", *arguments, statuses=statuses).split("\n")
    return [json.loads(line) for line in lines if line]
