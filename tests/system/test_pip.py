"""pip builds and installs tokend from a git clone, or says in one line what it lacks."""

import glob
import importlib.util
import os
import re
import subprocess

import pytest
from newcomer import end_daemons, home_of

from lib import REPO, has, run
from lib.pythons import find_python

FAST = {"CFLAGS": "-O0 -g0"}
FIRST_BATCH = """
from tokend import Loader
with Loader("train", 4, config="tokend.yaml") as loader:
    print(tuple(next(loader)["input_ids"].shape))
"""
spec = importlib.util.spec_from_file_location("tokend_wheel", REPO / "client/python/wheel.py")
wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheel)


@pytest.fixture(scope="module")
def user(shared):
    """The keys of a command that an unprivileged user runs in a clone that was never built."""
    home, keys = home_of(shared)
    yield keys
    end_daemons(home, keys)


def refusal(keys, *command, **variables):
    """The line of the output that says why @command fails."""
    code, out, err = run(*command, **keys | {"env": keys["env"] | variables})
    assert code and "Traceback" not in err, (out, err)
    lines = [line.strip() for line in err.splitlines()]
    (line,) = {line for line in lines if line.startswith("tokend: ")}  # pip repeats it
    return line


@pytest.mark.limit(400)  # it compiles
def test_from_git_to_the_first_batch(user):
    home = user["env"]["HOME"]
    url = f"git+file://{home}/clone#subdirectory=client/python"
    keys = user | {"cwd": home, "env": user["env"] | FAST, "timeout": 300}
    for command, said in (
        (["pip", "install", url], ""),
        (["tokctl", "--version"], wheel.version()),
        (["python", "-m", "tokend", "init", "text/web", "text/code"], ""),
        (["python", "-m", "tokend", "try"], "the first batch after"),
        (["python", "-c", FIRST_BATCH], "(4, 1024)\n"),
    ):
        code, out, err = run(f"{home}/venv/bin/{command[0]}", *command[1:], **keys)
        assert code == 0 and said in out.decode(), (command, out, err)
    assert not glob.glob(f"{home}/clone/build"), "pip has built its own clone"


def test_a_missing_header_is_named_with_its_packages(user, directory):
    for name in set(os.listdir("/usr/include")) - {"uv.h", "yaml.h"}:
        (directory / name).symlink_to(f"/usr/include/{name}")
    own = subprocess.check_output(["gcc", "-print-multiarch"], text=True).strip()
    flags = f"-nostdinc -isystem {directory} -isystem /usr/include/{own}"
    assert refusal(user, "pip", "install", "./client/python", CFLAGS=flags) == (
        "tokend: the build needs uv.h, yaml.h; install libuv1-dev libyaml-dev (Debian, Ubuntu) "
        "or libuv-devel libyaml-devel (Fedora, RHEL)"
    )


def test_a_fresh_machine_is_told_all_packages(user):
    """Those of tests/deps.sh, and the compiler's. They have all headers of the sources."""
    programs = f"{user['env']['HOME']}/venv/bin"
    command = f"{programs}/python", f"{programs}/pip", "install", "./client/python"
    line = refusal(user, *command, PATH=programs)
    debian, rpm = re.fullmatch(r".*; install (.*) \(Debian.*\) or (.*) \(Fedora.*\)", line).groups()
    installed = (REPO / "tests/deps.sh").read_text()
    assert {*debian.split()} - {*re.findall(r"[\w-]+", installed)} == {"libc6-dev"}
    assert len(rpm.split()) == len(debian.split()) == len({**wheel.TOOLS, **wheel.HEADERS})
    sources = [REPO.glob(f"{room}/**/*.[ch]") for room in ("proto", "daemon", "client")]
    text = "\n".join(path.read_text() for paths in sources for path in paths)
    named = set(re.findall(r"^#\s*include <([^>]+)>", text, re.M)) - {"Python.h"}
    roots = ["/usr/include", "/usr/share/include/llhttp", *glob.glob("/usr/include/*-linux-gnu")]
    found = [f"{root}/{name}" for root in roots for name in named]
    _, out, _ = run("dpkg", "-S", *filter(os.path.exists, found))
    owners = {line.split(":")[0] for line in out.decode().splitlines()}
    assert len(owners) > 10 and owners <= {*debian.split(), "node-llhttp", "linux-libc-dev"}


def test_what_cannot_be_built_is_refused(user):
    sdist, build = (f"import wheel; wheel.build_{kind}('.')" for kind in ("sdist", "wheel"))
    here = user | {"cwd": f"{user['cwd']}/client/python"}
    assert "use a git clone" in refusal(here, "python", "-c", sdist)
    run("cp", "-r", ".", "../../../copied", **here)
    assert "in a git clone, with pip 21.3" in refusal(user, "pip", "install", "../copied")
    code, _, err = run("pip", "install", "-e", "./client/python", **user)
    assert code and [line[:6] for line in err.splitlines()] == ["ERROR:"], err
    old = find_python("3.9")
    if old:
        mine = {"cwd": REPO / "client/python", "env": user["env"]}  # nobody may not run it
        assert has(refusal(mine, old, "-Bc", build), "3.10 or later")


def test_pyproject_reads_the_same_without_tomllib():
    tomllib = pytest.importorskip("tomllib", reason="no tomllib before Python 3.11")
    project = tomllib.loads((REPO / "client/python/pyproject.toml").read_text())["project"]
    assert project.pop("optional-dependencies") == wheel.table("project.optional-dependencies")
    assert project == wheel.table("project")
