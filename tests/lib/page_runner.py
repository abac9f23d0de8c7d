"""Executes the code blocks of a page, in order, with a real daemon over shards of toy size."""

import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import traceback

import numpy
import yaml

from .forks import FORKS, print_to
from .pages import commands, console, missing, missing_target
from .process import REPO, TOKEND, child_environment, free_port, run

BLOCK_SECONDS = 120
TOP_LEVEL = {"stores", "cache", "socket", "state_dir", "memory"}
TOP_LEVEL |= {"io", "direct", "allow_uids", "admin_uids"}


class Enough(BaseException):
    pass


def execute_python(jobs, directory, environment, log):
    """The process that executes a page's Python. train() ends a block after some batches."""
    calls = 0

    def train(*arguments, **keys):
        nonlocal calls
        calls += 1
        if calls > 20:
            raise Enough

    print_to(log, log)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.chdir(directory)
    sys.path.insert(0, "")
    names = {"__name__": "__main__", "train": train, "save": lambda *_, **__: None, "model": None}
    while True:
        job = jobs.recv()
        os.environ.update(job["environment"])
        calls, failed = 0, False
        try:
            exec(compile(job["text"], job["name"], "exec"), names)
        except Enough:
            pass
        except BaseException:
            traceback.print_exc()
            failed = True
        sys.stdout.flush()
        sys.stderr.flush()
        jobs.send(failed)


# `tokend -c FILE` serves until the page ends; the next one takes its place.
SHELL = """set -e
tokend() {
    case " $* " in
    *" --check "* | *" --help "* | *" --version "*) command tokend "$@" ;;
    *)
        serve tokend "$@" --socket "$PAGE/tokend.sock"
        export TOKEND_SOCKET="$PAGE/tokend.sock"
        ;;
    esac
}
python() {
    case "$*" in
    "-m tokend run "*) serve python "$@" ;;
    *) command python "$@" ;;
    esac
}
runs() {
    grep -qs '^State:.[^ZX]' "/proc/$1/status"
}
serve() {
    if [ -e "$PAGE/.daemon" ]; then
        local before until=$((SECONDS + 30))
        before=$(cat "$PAGE/.daemon")
        kill "$before"
        while runs "$before"; do
            [ $SECONDS -lt $until ] || { echo "the daemon does not stop"; return 1; }
            sleep 0.02
        done
    fi
    : >"$PAGE/.log"
    command "$@" >>"$PAGE/.log" 2>&1 &
    echo $! >"$PAGE/.daemon"
    until grep -q "ready at" "$PAGE/.log"; do
        runs "$(cat "$PAGE/.daemon")" || { cat "$PAGE/.log" >&2; return 1; }
        sleep 0.02
    done
    cat "$PAGE/.log"
}
"""


def check_shown(block):
    """The block is a file, or pieces of it with `# …` between them."""
    path = REPO / pathlib.Path(block.page).parent / block.shown
    text, at = path.read_text(), 0
    for piece in re.split(r" *# …\n", block.text):
        assert piece in text[at:], f"{block}: not in {block.shown}: {piece[:200]}"
        at = text.index(piece, at) + len(piece)


class Runner:
    """Executes the blocks of one page in @directory, in order."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.output = ""  # of the last block
        self.python = None
        port = free_port()
        self.replaced = {  # what a page says: what is executed
            "/data/": f"{self.directory}/data/",
            "/nvme/": f"{self.directory}/nvme/",
            "/var/lib/tokend": f"{self.directory}/state",
            "/run/tokend/tokend.sock": f"{self.directory}/tokend.sock",
            "127.0.0.1:9464": f"127.0.0.1:{port}",
        }
        self._toys()

    def _toys(self):
        """Shards and a config of toy size: streams train (web, code) and valid (held-out)."""
        random = numpy.random.default_rng(1)
        names = {"web/0.bin": 300_000, "web/1.bin": 200_000, "code/0.bin": 300_000}
        names |= {"held-out.bin": 30_000, "valid.bin": 30_000}
        for name, tokens in names.items():
            path = self.directory / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            values = random.integers(0, 50256, tokens).astype("<u2")
            values[499::500] = 50256  # documents
            values.tofile(path)
        for name in ("build", "client", "config", "tests"):
            (self.directory / name).symlink_to(REPO / name)
        for name in ("tokend", "tokctl"):  # as the wheel installs them
            command = self.directory / "bin" / name
            command.parent.mkdir(exist_ok=True)
            sub = {"tokend": "daemon", "tokctl": "ctl"}[name]
            command.write_text(f'#!/bin/sh\nexec python -m tokend {sub} "$@"\n')
            command.chmod(0o755)
        for name in ("run", "state"):
            (self.directory / name).mkdir(mode=0o700)
        web, code, held_out = (
            {"name": name, "path": f"{self.directory}/data/{path}"}
            for name, path in (("web", "web"), ("code", "code"), ("held-out", "held-out.bin"))
        )
        train = {"seed": 42, "seq_len": 64, "datasets": [{**web, "weight": 0.7}]}
        train["datasets"].append({**code, "weight": 0.3})
        valid = {"seed": 1, "seq_len": 64, "epochs": 1, "datasets": [held_out]}
        self.config = {"streams": {"train": train, "valid": valid}}
        self._write_config()

    def _write_config(self):
        whole = {"state_dir": f"{self.directory}/state", "memory": "64MiB", **self.config}
        (self.directory / "tokend.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))

    def environment(self):
        more = {
            "PAGE": str(self.directory),
            "HOME": str(self.directory),
            "XDG_RUNTIME_DIR": str(self.directory / "run"),
            "XDG_STATE_HOME": str(self.directory / "state"),
            "PATH": f"{self.directory}/bin:{REPO}/build/venv/bin:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        if (self.directory / ".daemon").exists():
            more["TOKEND_SOCKET"] = str(self.directory / "tokend.sock")
        store = self.directory / ".store"  # page_store.py wrote it
        if store.exists():
            more.update(json.loads(store.read_text()))
        return child_environment(**more)

    def end(self):
        """Kills what the page has started: all of it has inherited $PAGE."""
        for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"PAGE={self.directory}\0".encode() in environ.read_bytes():
                    os.kill(int(environ.parent.name), signal.SIGKILL)
            except OSError:
                pass  # it has ended
        if self.python:
            self.python.kill()
            self.python.join()

    def _local(self, text):
        for shown, actual in self.replaced.items():
            text = text.replace(shown, actual)
        return text

    def _public(self, text):
        for shown, actual in self.replaced.items():
            text = text.replace(actual, shown)
        return text.replace(f"{self.directory}/", "")

    def execute(self, block):
        """AssertionError: the block does not do what the page says."""
        if block.shown:
            return check_shown(block)
        if block.note == "picture":
            return None
        if block.note == "file":
            return (self.directory / block.argument).write_text(self._local(block.text))
        if block.note == "output":
            line = missing(block.text, self.output)
            assert line is None, f"{block}: not in the output: {line}\n{self.output}"
            return None
        kinds = ("sh", "console", "python", "yaml")
        assert block.kind in kinds, f"{block}: ```{block.kind} says nothing that can be executed"
        return getattr(self, f"_{block.kind}")(block)

    def _ended(self, block, failed):
        assert failed == (block.note == "fails"), (
            f"{block}: {'fails' if failed else 'succeeds'}:\n{block.text}\n{self.output}"
        )

    def _sh(self, block, script=None):
        script, excepted = commands(script or block.text)
        for command in excepted:
            gone = missing_target(command)
            assert not gone, f"{block}: make {gone}: no such target"
        log = self.directory / ".output"
        with open(log, "wb") as out:
            shell = subprocess.Popen(
                ["bash", "-c", SHELL + self._local(script)],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            code = shell.wait(BLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            code = f"killed after {BLOCK_SECONDS} s"
            shell.kill()
            shell.wait()
        self.output = self._public(log.read_text(errors="replace"))
        assert isinstance(code, int), f"{block}: {code}:\n{script}\n{self.output[-3000:]}"
        self._ended(block, code != 0)

    def _console(self, block):
        pairs = console(block.text)
        assert pairs, f"{block}: no command in it"
        for command, shown in pairs:
            self._sh(block, command)
            in_order = not command.startswith("torchrun ")  # ranks print at the same time
            line = missing(shown, self.output, in_order)
            assert line is None, f"{block}: {command}: not in its output: {line}\n{self.output}"

    def _python(self, block):
        log = self.directory / ".python"
        log.touch()
        if not self.python:
            self.jobs, other = multiprocessing.Pipe()
            arguments = (other, str(self.directory), self.environment(), str(log))
            self.python = FORKS.Process(target=execute_python, args=arguments)
            self.python.start()
            other.close()
        before = log.stat().st_size
        job = {"text": self._local(block.text), "name": str(block)}
        self.jobs.send({**job, "environment": self.environment()})
        try:
            failed = self.jobs.recv()
        except EOFError:
            failed = None
        self.output = self._public(log.read_bytes()[before:].decode(errors="replace"))
        assert failed is not None, f"{block}: the process ended:\n{self.output}"
        self._ended(block, failed)

    def _yaml(self, block):
        """A whole config takes the place of the one before; a part is merged into it."""
        part = yaml.safe_load(self._local(block.text))
        train = next(iter(self.config["streams"].values()))
        if isinstance(part, list):
            train["datasets"] = part
        elif "streams" in part:
            self.config = part
        elif "name" in part:
            train["datasets"] = [part]
        else:
            for key, value in part.items():
                (self.config if key in TOP_LEVEL else train)[key] = value
        self._write_config()
        file = self.directory / "tokend.yaml"
        code, out, err = run(TOKEND, "-c", file, "--check", env=self.environment())
        self.output = self._public(out.decode() + err)
        self._ended(block, code != 0)
