"""python -m tokend: begins with a directory of data, runs a private daemon in the foreground,
tokctl, or tokend itself.
"""

import os
import signal
import sys

from ._tokend import Error, program, version

USAGE = """\
usage: python -m tokend init [PATH…]   write tokend.yaml and train.py for shards or text
       python -m tokend try [STREAM]   serve tokend.yaml and show a batch
       python -m tokend run -c FILE    serve a config until Ctrl-C, for Loader(config=FILE) and
                                       tokctl -c FILE
       python -m tokend report STREAM RECORD… -o FILE
                                       write what a run was served as an HTML page
       python -m tokend ctl …          run tokctl
       python -m tokend daemon …       run tokend, as on a fleet
       python -m tokend --version      print the version
       python -m tokend --pkgconfigdir print the directory of tokend.pc, for C programs
       python -m tokend --docdir       print the directory of the pages and examples
       python -m tokend.tokenize       make shards from text
       python -m tokend.show           print samples as text
"""


def fail(text):
    print(f"tokend: {text}", file=sys.stderr)
    return 1


def become(name, *arguments):
    path = program(name)
    # Python ignores SIGPIPE, and the program would inherit that
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(path, [path, *arguments])


def run(arguments):
    from .data.parser import Parser

    parser = Parser(
        prog="python -m tokend run", description="Serves a config in the foreground, until Ctrl-C."
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the config, as for tokend -c"
    )
    become("tokctl", "start", "--foreground", "-c", parser.parse_args(arguments).config)


def ctl(arguments):
    become("tokctl", *arguments)


def daemon(arguments):
    become("tokend", *arguments)


def init(arguments):
    from .data import init as command

    return command.main(arguments)


def report(arguments):
    from .data import report as command

    return command.main(arguments)


def first(arguments):
    from .data import trial

    return trial.main(arguments)


def pkgconfigdir():
    directory = os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib", "pkgconfig")
    if not os.path.exists(os.path.join(directory, "tokend.pc")):
        return fail(
            f"{directory} has no tokend.pc, because this package does not come from the wheel; "
            "`make install` puts it into PREFIX/lib/pkgconfig"
        )
    print(directory)
    return 0


def docdir():
    package = os.path.dirname(os.path.realpath(__file__))
    for up in ("../../../..", ".."):  # as pip installs; with --target
        directory = os.path.normpath(os.path.join(package, up, "share/doc/tokend"))
        if os.path.isdir(directory):
            print(directory)
            return 0
    return fail(f"{package} has no pages near it; they come with the wheel and `make install`")


def unknown(name, commands):
    from .data.parser import meant

    fail(f"unknown command {name!r}{meant(name, commands)}; python -m tokend --help lists all")
    return 2


def main(arguments):
    commands = {"init": init, "try": first, "run": run, "report": report}
    commands |= {"ctl": ctl, "daemon": daemon}
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments == ["--version"]:
        print(f"tokend {version}")
        return 0
    if arguments == ["--pkgconfigdir"]:
        return pkgconfigdir()
    if arguments == ["--docdir"]:
        return docdir()
    if not arguments:
        sys.stderr.write(USAGE)
        return 2
    if arguments[0] not in commands:
        return unknown(arguments[0], commands)
    try:
        return commands[arguments[0]](arguments[1:])
    except (Error, OSError) as error:
        return fail(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
