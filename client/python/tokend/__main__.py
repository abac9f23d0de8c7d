"""python -m tokend: runs a private daemon in the foreground, tokctl, or tokend itself.

The wheel's commands `tokend` and `tokctl` are `python -m tokend daemon` and `python -m tokend ctl`.
"""

import argparse
import os
import signal
import sys

from . import private
from ._tokend import Error

USAGE = """\
usage: python -m tokend run -c FILE    serve a config until Ctrl-C, for Loader(config=FILE) and
                                       tokctl -c FILE
       python -m tokend ctl …          run tokctl; -c FILE finds that config's private daemon
       python -m tokend daemon …       run tokend, as on a fleet
       python -m tokend --pkgconfigdir print the directory of tokend.pc, for C programs
       python -m tokend.tokenize       make shards from text
       python -m tokend.show           print samples as text
"""


def fail(text, status=1):
    print(f"tokend: {text}", file=sys.stderr)
    return status


def become(command):
    # Python ignores SIGPIPE, and the program would inherit that
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(command[0], command)


def option_config(arguments):
    """Returns the value of -c or --config, or None."""
    for at, argument in enumerate(arguments):
        if argument in ("-c", "--config"):
            return arguments[at + 1] if at + 1 < len(arguments) else None
        if argument.startswith("--config="):
            return argument.removeprefix("--config=")
        if argument.startswith("-c") and not argument.startswith("--"):
            return argument[2:]
    return None


def named(arguments):
    """Is a socket given that takes precedence over the config's?"""
    return bool(os.environ.get("TOKEND_SOCKET")) or any(
        a == "--socket" or a.startswith("--socket=") for a in arguments
    )


def run(arguments):
    parser = argparse.ArgumentParser(
        "python -m tokend run", description="Serves a config in the foreground, until Ctrl-C."
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the config, as for tokend -c"
    )
    config = os.path.realpath(parser.parse_args(arguments).config)
    path = private.socket_of(config)
    lock = private.take_lock(path)
    if lock is None:
        return fail(
            f"{config}: its private daemon already runs, at {path}; wait until it ends, a minute "
            "after its last session"
        )
    os.set_inheritable(lock, True)
    become(private.command(config, path, lock))


def ctl(arguments):
    config = option_config(arguments)
    if config is not None and not named(arguments):
        config = os.path.realpath(config)
        # Other errors in the file are for tokctl to report.
        if (
            os.path.isfile(config)
            and os.access(config, os.R_OK)
            and private.configured(config) is None
        ):
            path = private.socket_of(config)
            if os.path.exists(path) and os.stat(os.path.dirname(path)).st_uid == os.getuid():
                os.environ["TOKEND_SOCKET"] = path
    become([private.program("tokctl"), *arguments])


def daemon(arguments):
    become([private.program("tokend"), *arguments])


def pkgconfigdir():
    directory = os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib", "pkgconfig")
    if not os.path.exists(os.path.join(directory, "tokend.pc")):
        return fail(
            f"{directory} has no tokend.pc, because this package does not come from the wheel; "
            "`make install` puts it into PREFIX/lib/pkgconfig"
        )
    print(directory)
    return 0


def main(arguments):
    commands = {"run": run, "ctl": ctl, "daemon": daemon}
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    if arguments == ["--pkgconfigdir"]:
        return pkgconfigdir()
    if not arguments or arguments[0] not in commands:
        sys.stderr.write(USAGE)
        return 2
    try:
        return commands[arguments[0]](arguments[1:])
    except (Error, OSError) as error:
        return fail(error)


def tokend():
    return main(["daemon", *sys.argv[1:]])


def tokctl():
    return main(["ctl", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
