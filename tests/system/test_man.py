"""The man pages contain every command, option, config key and variable of the programs, render
without a warning, and their examples run.
"""

import os
import re
import subprocess
import sys

import pytest

from lib import BIN, REPO, TOKCTL, TOKEND, Daemon, Place, child_environment, run, status, wait_for

PAGES = ["tokctl.1", "tokend.8", "tokend.yaml.5"]
CHARACTERS = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ti": "~", r"\(ha": "^", r"\(rs": "\\"}


def source(page):
    code, out, err = run(TOKCTL, "help", "--man", page)
    assert (code, err) == (0, "")
    return out.decode()


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


def options(help_text):
    return re.findall(r"^  (?:-\w, |    )--([a-z-]+)", help_text, re.M)


@pytest.mark.parametrize("page", PAGES)
def test_page_is_built_and_renders_without_warning(page):
    path = f"{REPO}/build/gcc/man/{page}"
    assert open(path).read() == source(page)
    for device in ("utf8", "ascii"):
        code, out, err = run("groff", "-ww", "-man", f"-T{device}", path)
        assert (code, err) == (0, "") and out
    code, out, err = run("man", "--warnings", "-l", path, env={**os.environ, "MANWIDTH": "80"})
    assert (code, err) == (0, "")
    assert all(len(line) <= 100 for example in examples(page) for line in example.splitlines())


def test_unknown_page_is_a_usage_error():
    assert run(TOKCTL, "help", "--man", "tokctl.2")[0] == 2


def commands():
    """(name, its --help) of all commands and subcommands."""
    for name in re.findall(r"^  (\w+) ", run(TOKCTL, "--help")[1].decode(), re.M):
        text = run(TOKCTL, name, "--help")[1].decode()
        yield name, text
        if name in ("cursor", "cache"):
            for edit in re.findall(r"^  (\w+) ", text, re.M):
                yield f"{name} {edit}", run(TOKCTL, name, edit, "--help")[1].decode()


def test_tokctl_page_has_every_command_and_option():
    page = sections("tokctl.1", "SS")
    seen = {}
    for name, text in commands():
        section = page[f"tokctl {name}"]
        have = [re.match(r"(?:-\w, )?--([a-z-]+)", term)[1] for term in terms(section)]
        assert have == [option for option in options(text) if option != "help"], name
        seen[f"tokctl {name}"] = have
        synopsis = re.sub(r"\n {7}", " ", text).splitlines()[0].removeprefix("usage: ")
        assert synopsis in section.replace("\\ ", " "), name
    assert set(seen) == set(page) and len(seen) > 20


def test_json_is_not_promised_where_it_is_missing():
    """And the description of tokctl(1) has a rule instead of a list, which once lacked commands."""
    lack = {name for name, text in commands() if "json" not in options(text)}
    assert {"top", "cat", "report", "cursor new", "cache warm", "cache drop"} <= lack
    with open(f"{REPO}/client/OPERATIONS.md") as page:
        assert "for every command." not in page.read()


def test_every_command_has_an_example():
    page = sections("tokctl.1", "SS")
    groups = "tokctl cursor", "tokctl cache"
    missing = [name for name, text in page.items() if ".EX" not in text and name not in groups]
    assert not missing


def test_tokend_page_has_every_option():
    text = run(TOKEND, "--help")[1].decode()
    have = [
        re.match(r"(?:-\w, )?--([a-z-]+)", t)[1]
        for t in terms(sections("tokend.8", "SH")["OPTIONS"])
    ]
    assert have == options(text) and "config" in have


TABLES = {  # section: a config with an unknown key in that mapping
    "KEYS": "zzzzzzzzz: 1",
    "KEYS OF A STREAM": "streams: {t: {zzzzzzzzz: 1}}",
    "KEYS OF A DATASET": "streams: {t: {datasets: [{zzzzzzzzz: 1}]}}",
    "KEYS OF A SCHEDULE ENTRY": "streams: {t: {seed: 1, seq_len: 1, "
    "datasets: [{name: a, path: b}], schedule: [{zzzzzzzzz: 1}]}}",
    "KEYS OF A STORE": "stores: {lab: {zzzzzzzzz: 1}}",
    "KEYS OF THE CACHE": "cache: {zzzzzzzzz: 1}",
}


def test_config_page_has_the_keys_that_the_parser_accepts(tmp_path):
    page = sections("tokend.yaml.5", "SH")
    config = tmp_path / "bad.yaml"
    for section, text in TABLES.items():
        config.write_text(text)
        code, _, err = run(TOKEND, "-c", config, "--check")
        known = re.search(r"unknown key; must be one of (.*)\n", err)
        assert code == 1 and known, err
        keys = [term.removesuffix(":") for term in terms(page[section])]
        assert keys == known[1].split(", "), section
        for entry in page[section].split(".TP\n")[1:]:
            assert "Value: " in entry, entry


def test_config_page_and_example_config_have_the_same_keys():
    page = sections("tokend.yaml.5", "SH")
    keys = {term.removesuffix(":") for section in TABLES for term in terms(page[section])}
    text = (REPO / "config/tokend.yaml").read_text()
    missing = [key for key in keys if not re.search(rf"[ {{`\n]{key}:[ \n]", text)]
    assert not missing


def variables(*folders):
    found = set()
    for folder in folders:
        for path in (REPO / folder).rglob("*.c"):
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

socket, first = sys.argv[1:]
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
  valid:
    seed: 42
    seq_len: 32
    epochs: 1
    datasets:
      - {name: held-out, path: data/valid.bin}
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
        place.spawn(
            [sys.executable, "-c", TRAINER, daemon.socket, "x"],
            cwd=place.path,
            env=child_environment(),
        )
        wait_for(lambda: os.path.exists(place.file("run.cursor")))
        yield place, daemon
        assert daemon.stop() == 0


@pytest.mark.parametrize("page", PAGES[:2])
def test_commands_of_the_examples_succeed(scene, page):
    place, daemon = scene
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "TOKEND_SOCKET": daemon.socket,
    }
    commands = examples(page)
    assert commands
    for command in commands:
        wait_for(lambda: [s for s in status(daemon.socket)[0] if s["run"] == "job"])
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=place.path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, (command, done.stdout[-500:], done.stderr)


def test_configs_of_the_examples_are_valid(scene):
    place, _ = scene
    configs = examples("tokend.yaml.5")
    assert len(configs) > 1
    for text in configs:
        with open(place.file("example.yaml"), "w") as f:
            f.write(text)
        code, out, err = run(TOKEND, "-c", place.file("example.yaml"), "--check")
        assert (code, err) == (0, "") and out, text
