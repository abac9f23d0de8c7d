"""A daemon of one's own, where none serves the config: one per config and user, gone a minute after its last session.

The daemon is a process of its own session, so neither Ctrl-C nor the end of the trainer that started it takes it from
the others. Starters wait for each other at a lock; whoever comes second finds the first one's daemon.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import time

from ._tokend import Error

LINGER_SECONDS = 60
SOCKET_PATH_BYTES = 107

_started = []  # kept, so that Python does not complain of processes that outlive their object


def program(name):
    """Where one of our programs is: $TOKEND_BIN, beside the package, in the build tree it stands in, or on PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.environ.get("TOKEND_BIN"), os.path.join(here, "bin"), os.path.join(here, "..", "..", "bin")]
    places.append(os.path.join(here, "..", "..", "..", "build", "bin"))
    for place in filter(None, places):
        path = os.path.join(place, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return os.path.abspath(path)
    found = shutil.which(name)
    if found is None:
        raise Error(f"config: {name} is neither beside the package nor on PATH: install it, or set TOKEND_BIN to its directory")
    return found


def answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def directory():
    """A directory that only we can write to, for the sockets of our private daemons."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        path = os.path.join(runtime, "tokend")
    else:
        path = f"/tmp/tokend-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Error(f"config: {path} must be a directory of uid {os.getuid()} with mode 0700: remove it")
    return path


def configured(config):
    """The socket that the config names, if a daemon answers there."""
    environment = {name: value for name, value in os.environ.items() if name != "TOKEND_SOCKET"}
    asked = subprocess.run(
        [program("tokctl"), "status", "-c", config, "--json"],
        capture_output=True, text=True, env=environment, check=False,
    )
    if asked.returncode != 0:
        return None
    return json.loads(asked.stdout.splitlines()[-1])["socket"]


def _last_line(path):
    with open(path, errors="replace") as log:
        lines = log.read().splitlines()
    return lines[-1] if lines else "it said nothing"


def _start(config, path, deadline):
    log = path + ".log"
    command = [program("tokend"), "-c", config, "--socket", path, "--linger", str(LINGER_SECONDS)]
    with open(log, "w") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
    _started.append(process)
    give_up = time.monotonic() + deadline
    while not answers(path):
        if process.poll() is not None:
            raise Error(_last_line(log))
        if time.monotonic() > give_up:
            process.kill()
            raise Error(f"config: the daemon for {config} did not answer within {deadline:g} s; its log is {log}")
        time.sleep(0.005)


def socket_for(config, deadline):
    """The socket of a daemon that serves @config: the configured one, else a private one, which is started if need be."""
    config = os.path.realpath(config)
    # A config that was edited is another one: its readers must not meet a daemon that still serves the former text.
    with open(config, "rb") as text:
        key = hashlib.sha256(os.fsencode(config) + b"\0" + text.read()).hexdigest()[:16]
    found = configured(config)
    if found:
        return found
    path = os.path.join(directory(), key + ".sock")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise Error(f"config: {path} is longer than the {SOCKET_PATH_BYTES} bytes of a socket's path: set XDG_RUNTIME_DIR")
    with open(path + ".start", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not answers(path):
            _start(config, path, deadline)
    return path
