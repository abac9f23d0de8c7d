"""The man pages render without a warning, have an example of each command, and the examples run.
The completions work in bash and zsh.
"""

import os
import re
import sys

import pytest

from lib import BIN, REPO, TOKCTL, TOKEND, Daemon, child_environment, run, wait_for
from lib.terminal import Terminal

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


def test_pages_render_without_warning():
    for page in PAGES:
        code, out, err = run("groff", "-ww", "-man", "-Tutf8", f"{REPO}/build/gcc/man/{page}")
        assert (code, err) == (0, "") and out


def test_the_example_config_has_every_key():
    page = sections("tokend.yaml.5", "SH")
    keys = {
        term.removesuffix(":") for title in page if "KEYS" in title for term in terms(page[title])
    }
    text = (REPO / "config/tokend.yaml").read_text()
    missing = [key for key in keys if not re.search(rf"[ {{`\n]{key}:[ \n]", text)]
    assert len(keys) > 40 and not missing


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
        open("trains", "w").close()
        for _ in loader:
            time.sleep(0.01)
            request = loader.control()
            if request and request.save:
                if request.stop:
                    os.remove("trains")
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
def scene(shared):
    """tokend.yaml, with its shards in data/; two cursors of train, begin.cursor and run.cursor; and
    records/, which its trainers wrote. A daemon serves tokend.yaml, and one rank trains on train.
    """
    for name in ("web/0000", "web/0001", "code/0000", "code/0001", "valid"):
        shared.shard(f"data/{name}.bin", 40_000)
    config = shared.file("tokend.yaml")
    with open(config, "w") as f:
        f.write(CONFIG)
    daemon = Daemon(shared, config, socket_path=shared.file("tokend.sock"))
    command = [sys.executable, "-c", TRAINER, daemon.socket]
    shared.spawn(command, cwd=shared.path, env=child_environment())
    wait_for(lambda: os.path.exists(shared.file("run.cursor")))
    return shared, daemon


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_of_the_examples_succeed(scene, page):
    place, daemon = scene
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "TOKEND_SOCKET": daemon.socket}
    keys = {"cwd": place.path, "env": {**os.environ, **path}}
    for command in examples(page):
        wait_for(lambda: os.path.exists(place.file("trains")))  # not one that ends
        code, out, err = run("bash", "-ec", command, timeout=90, **keys)
        assert code == 0, (command, out[-500:], err)
    groups = "tokctl cursor", "tokctl cache"
    commands = sections(page, "SS") if page == "tokctl.1" else {}
    assert not [name for name in commands if ".EX" not in commands[name] and name not in groups]
    if commands:
        listed = re.findall(r"^  ([a-z]+)  ", run(TOKCTL, "help")[1].decode(), re.M)
        assert len(listed) > 20 and {f"tokctl {name}" for name in listed} <= set(commands)


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


TYPED = {
    "tokctl cursor se": "tokctl cursor seek",
    "tokctl help cursor re": "tokctl help cursor remove",
    "tokctl cursor mix --o": "tokctl cursor mix --output",
    "tokctl plan -c on": "tokctl plan -c only.yaml",
    "tokend --ch": "tokend --check",
    "./tokend/tokctl cursor se": "./tokend/tokctl cursor seek",
}
SHELLS = {
    "bash": ["exec bash --norc -i", f"source {FILES}/tokctl.bash"],
    "zsh": ["exec zsh -f -i", f"fpath=({FILES} $fpath); autoload -Uz compinit; compinit -u -D"],
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete(place, shell):
    open(place.file("only.yaml"), "w").close()
    with Terminal(place, columns=200, lines=60) as terminal:
        terminal.type(f"cd {place.path}; PATH={BIN}:$PATH; PS1='sh> ' {SHELLS[shell][0]}")
        terminal.type(SHELLS[shell][1])
        for line, shown in TYPED.items():
            terminal.press("C-u", "C-l")
            wait_for(lambda: terminal.lines()[0].strip() == "sh>")
            terminal("send-keys", "-l", line + "\t")
            terminal.shows(shown)
