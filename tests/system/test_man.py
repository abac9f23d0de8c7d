"""The man pages render without a warning, have an example of each command, and the examples run.
The completions work in bash and zsh.
"""

import os
import pty
import re
import select
import shlex
import sys

import pytest

from lib import BIN, REPO, TOKCTL, TOKEND, Daemon, Place, child_environment, run, status, wait_for

PAGES = ["tokctl.1", "tokend.8", "tokend.yaml.5"]
CHARACTERS = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ti": "~", r"\(ha": "^", r"\(rs": "\\"}


def source(page):
    return (REPO / "build/gcc/man" / page).read_text()


def plain(text):
    """The text of roff, without fonts."""
    text = re.sub(r"\\f[BIR]|\\&", "", text)
    return re.sub(r"\\-|\\\([a-z]{2}", lambda match: CHARACTERS[match[0]], text)


def examples(page):
    return [plain(block) for block in re.findall(r"^\.EX\n(.*?)^\.EE", source(page), re.M | re.S)]


def sections(page, macro):
    """Title → text, below each .SH or .SS."""
    parts = re.split(rf"^\.{macro} (.*)\n", source(page), flags=re.M)
    ends = [text.split("\n.SH ")[0] for text in parts[2::2]]
    return {title: plain(text) for title, text in zip(parts[1::2], ends)}


def terms(text):
    """The terms of a section's lists."""
    return re.findall(r"^\.TP\n(.*)$", text, re.M)


@pytest.mark.parametrize("page", PAGES)
def test_page_renders_without_warning(page):
    path = f"{REPO}/build/gcc/man/{page}"
    for device in ("utf8", "ascii"):
        code, out, err = run("groff", "-ww", "-man", f"-T{device}", path)
        assert (code, err) == (0, "") and out
    code, _, err = run("man", "--warnings", "-l", path, env={**os.environ, "MANWIDTH": "80"})
    assert (code, err) == (0, "")


@pytest.mark.parametrize("option, name", [("--man", "tokctl.2"), ("--completion", "fish")])
def test_what_is_not_known_is_a_usage_error(option, name):
    code, _, err = run(TOKCTL, "help", option, name)
    assert code == 2 and "must be" in err, err


def test_the_example_config_has_every_key():
    page = sections("tokend.yaml.5", "SH")
    keys = {
        term.removesuffix(":") for title in page if "KEYS" in title for term in terms(page[title])
    }
    text = (REPO / "config/tokend.yaml").read_text()
    missing = [key for key in keys if not re.search(rf"[ {{`\n]{key}:[ \n]", text)]
    assert len(keys) > 40 and not missing


def variables(*folders):
    found = set()
    for path in (path for folder in folders for path in (REPO / folder).rglob("*.c")):
        for call in re.findall(r"(?:getenv|variable_for_us)\(([^)]*)\)", path.read_text()):
            found |= set(re.findall(r'"(\w+)"', call))
    return found


@pytest.mark.parametrize(
    "page, folders", [("tokctl.1", ["client/lib", "client/ctl"]), ("tokend.8", ["daemon"])]
)
def test_pages_have_every_variable_that_the_programs_read(page, folders):
    listed = terms(sections(page, "SH")["ENVIRONMENT"])
    assert {name for term in listed for name in term.split(", ")} == variables(*folders)


# ---- examples ----

TRAINER = """
import os, sys, time, tokend

socket = sys.argv[1]
with tokend.Loader("train", 4, socket=socket, run="first", record="records") as loader:
    open("begin.cursor", "wb").write(loader.state_dict()["cursor"])
    for _ in zip(range(1024), loader):
        pass
    open("part.cursor", "wb").write(loader.state_dict()["cursor"])
os.rename("part.cursor", "run.cursor")
while True:  # one job after another: drain and rescale end a job
    with tokend.Loader("train", 4, socket=socket, run="job") as loader:
        for _ in loader:
            time.sleep(0.01)
            request = loader.control()
            if request and request.save:
                request.done()
            if loader.should_stop:
                break
"""

CONFIG = """\
socket: tokend.sock
state_dir: state
memory: 64MiB
streams:
  train:
    seed: 42
    seq_len: 32
    datasets:
      - {name: web, path: data/web, weight: 0.7}
      - {name: code, path: data/code, weight: 0.3}
    schedule:
      - {at: 65536, weights: {web: 0.5, code: 0.5}}
  valid: {seed: 42, seq_len: 32, epochs: 1, datasets: [{name: held-out, path: data/valid.bin}]}
"""


@pytest.fixture(scope="module")
def scene():
    """The directory that client/ctl/common/arguments.h describes."""
    with Place() as place:
        for name in ("web/0000", "web/0001", "code/0000", "code/0001", "valid"):
            place.shard(f"data/{name}.bin", 40_000)
        config = place.file("tokend.yaml")
        with open(config, "w") as f:
            f.write(CONFIG)
        daemon = Daemon(place, config, socket_path=place.file("tokend.sock"))
        command = [sys.executable, "-c", TRAINER, daemon.socket]
        place.spawn(command, cwd=place.path, env=child_environment())
        wait_for(lambda: os.path.exists(place.file("run.cursor")))
        yield place, daemon
        assert daemon.stop() == 0


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_of_the_examples_succeed(scene, page):
    place, daemon = scene
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "TOKEND_SOCKET": daemon.socket}
    keys = {"cwd": place.path, "env": {**os.environ, **path}}
    for command in examples(page):
        wait_for(lambda: [s for s in status(daemon.socket)[0] if s["run"] == "job"])
        code, out, err = run("bash", "-ec", command, timeout=90, **keys)
        assert code == 0, (command, out[-500:], err)
    groups = "tokctl cursor", "tokctl cache"
    commands = sections(page, "SS").items() if page == "tokctl.1" else ()
    assert not [name for name, text in commands if ".EX" not in text and name not in groups]


def test_configs_of_the_examples_are_valid(scene):
    place, _ = scene
    configs = examples("tokend.yaml.5")
    assert len(configs) > 1
    for text in configs:
        with open(place.file("example.yaml"), "w") as f:
            f.write(text)
        code, out, err = run(TOKEND, "-c", place.file("example.yaml"), "--check")
        assert (code, err) == (0, "") and out, text


# ---- completions ----

FILES = REPO / "build/gcc/completion"


@pytest.mark.parametrize(
    "line, expected",
    [
        ("tokctl st", "start stop status"),
        ("tokctl cursor se", "seek"),
        ("tokctl cursor seek --w", ""),
        ("tokctl help m", "mix"),
        ("tokctl stop --s", "--socket"),
        ("tokctl pack --format ", "flat zstd megatron"),
        ("tokctl pack --format = z", "zstd"),
        ("tokend --ch", "--check"),
    ],
)
def test_bash_completes(line, expected, tmp_path):
    program, *words = line.split(" ")
    asked = f"""
        source {FILES}/{program}.bash
        COMP_WORDS=({program} {" ".join(shlex.quote(word) for word in words)})
        COMP_CWORD={len(words)}
        $(complete -p {program} | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
        echo "${{COMPREPLY[*]}}"
    """
    code, out, err = run("bash", "--norc", "-c", asked, cwd=tmp_path)
    assert (code, out.decode().strip(), err) == (0, expected, "")
    assert run("shellcheck", "-s", "bash", FILES / f"{program}.bash")[0] == 0


class Zsh:
    """An interactive zsh on a terminal."""

    def __init__(self, directory):
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(directory)
            environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "ready> "}
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        self.pid = pid
        self.read_until(b"ready> ")
        self.type("unset zle_bracketed_paste; stty cols 200 rows 60\n")
        self.read_until(b"ready> ")
        self.type(f"fpath=({FILES} $fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=999\n")
        self.read_until(b"ready> ")

    def type(self, text):
        os.write(self.terminal, text.encode())

    def read_until(self, end):
        out = b""
        while not re.search(end, out, re.S):
            assert select.select([self.terminal], [], [], 20)[0], out
            out += os.read(self.terminal, 1 << 16)
        return out.decode()

    def complete(self, line):
        """The text on the terminal after the line and a tab."""
        self.type(f"{line}\t\x15echo do''ne\n")  # Control-U removes the line
        return self.read_until(b"done\r\n.*ready> ")

    def end(self):
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def test_zsh_completes_with_descriptions(tmp_path):
    (tmp_path / "only.yaml").touch()
    zsh = Zsh(tmp_path)
    try:
        shown = zsh.complete("tokctl ")
        listed = re.findall(r"^  (\w+)  +(.{9,30})", run(TOKCTL, "--help")[1].decode(), re.M)
        for name, phrase in listed:
            assert re.search(rf"\b{name} +-- {re.escape(phrase)}", shown), name
        assert "plan" in dict(listed)
        shown = zsh.complete("tokctl cursor mix --")
        assert "--at" in shown and "--output" in shown and "--world" not in shown
        assert "megatron" in zsh.complete("tokctl pack --format ")
        assert "tokctl plan -c only.yaml" in zsh.complete("tokctl plan -c on")
        assert "tokend --check" in zsh.complete("tokend --ch")
    finally:
        zsh.end()
