"""python -m tokend: begins with a directory of data, runs a private daemon in the foreground,
tokctl, or tokend itself.
"""

import importlib
import os
import signal
import sys

from ._tokend import program, version
from .errors import Error
from .data.parser import meant, printable, progress

USAGE = """\
usage: python -m tokend init PATH…      write tokend.yaml and train.py for shards or text
       python -m tokend try [STREAM]    serve tokend.yaml and show a batch
       python -m tokend tokenize IN… -o DIR
                                        make shards from text
       python -m tokend show            print samples of tokctl plan --tokens --json as text
       python -m tokend report STREAM RECORD… -o FILE
                                        write what a run was served as an HTML page
       python -m tokend run -c FILE     serve a config until Ctrl-C, for Loader(config=FILE) and
                                        tokctl -c FILE
       python -m tokend ctl …           run tokctl
       python -m tokend daemon …        run tokend, as on a fleet
       python -m tokend --version       print the version
       python -m tokend --pkgconfigdir  print the directory of tokend.pc, for C programs
       python -m tokend --docdir        print the directory of the pages and examples
"""
MODULES = {name: name for name in ("init", "tokenize", "show", "report")} | {"try": "trial"}
PROGRAMS = {"run": ("tokctl", "start", "--foreground"), "ctl": ("tokctl",), "daemon": ("tokend",)}
PACKAGE = os.path.dirname(os.path.realpath(__file__))


def fail(text, status=1, name="tokend"):
    progress()
    print(f"{name}: {printable(str(text))}", file=sys.stderr)
    return status


def become(name, *arguments):
    path = program(name)
    # Python ignores SIGPIPE, and the program would inherit that
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(path, [path, *arguments])


def near(*places):
    for place in places:
        directory = os.path.normpath(os.path.join(PACKAGE, place))
        if os.path.isdir(directory):
            return directory
    raise Error(
        f"{PACKAGE}: has no such directory near it; `make install` has put them below PREFIX"
    )


PRINTED = {
    "-h": lambda: USAGE[:-1],
    "--help": lambda: USAGE[:-1],
    "--version": lambda: f"tokend {version}",
    "--pkgconfigdir": lambda: near("lib/pkgconfig"),
    # as pip installs; with --target
    "--docdir": lambda: near("../../../../share/doc/tokend", "../share/doc/tokend"),
}


def command(name, arguments):
    """Runs a command of data/. Its errors are one line."""
    who = f"tokend {name}"
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = importlib.import_module(f".data.{MODULES[name]}", __package__).main(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        return fail("; ".join(["interrupted", *interrupt.args]), 130, who)
    except UnicodeEncodeError:
        return fail("a path is not UTF-8; rename it", 1, who)
    except OSError as error:
        return fail(f"{error.filename or '.'}: {error.strerror or error}", 1, who)
    except ImportError as error:
        return fail(f"{error}; pip install {(error.name or '').partition('.')[0]}", 1, who)
    except Error as error:
        return fail(error, 1, who)


def main(arguments):
    if not arguments:
        sys.stderr.write(USAGE)
        return 2
    name, *rest = arguments
    if name in MODULES:
        return command(name, rest)
    try:
        if name in PRINTED and not rest:
            print(PRINTED[name]())
            return 0
        if name in PROGRAMS:
            become(*PROGRAMS[name], *rest)
    except (Error, OSError) as error:
        return fail(error)
    known = meant(name, (*MODULES, *PROGRAMS))
    return fail(f"unknown command {name!r}{known}; python -m tokend --help lists all", 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
