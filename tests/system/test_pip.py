"""pip builds and installs tokend from a git clone, or says in one line what it lacks."""

import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from lib import REPO, TOKCTL, run, wait_for

NOBODY = 65534
FIRST_BATCH = """
from tokend import Loader
with Loader("train", 4, config="tokend.yaml") as loader:
    print(tuple(next(loader)["input_ids"].shape))
"""
PIP = """\
#!{python}
from pip._internal.cli.main import main
raise SystemExit(main())
"""
spec = importlib.util.spec_from_file_location("tokend_wheel", REPO / "client/python/wheel.py")
wheel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheel)


def make_environment(venv):
    """A virtual environment. pip and torch are those of build/venv, as if installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    (theirs,) = glob.glob(f"{REPO}/build/venv/lib/python3*/site-packages")
    with open(f"{site}/torch.pth", "w") as file:
        file.write(os.path.realpath(theirs) + "\n")
    with open(f"{venv}/bin/pip", "w") as file:
        file.write(PIP.format(python=f"{venv}/bin/python"))
    os.chmod(f"{venv}/bin/pip", 0o755)


def clone_into(directory):
    """Commits this tree, as it is, into a repository of its own."""
    list_files = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(list_files, cwd=REPO, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(lambda name: (REPO / name).exists(), listed.stdout.split("\0")[:-1]):
        os.makedirs(os.path.dirname(f"{directory}/{name}"), exist_ok=True)
        shutil.copy2(REPO / name, f"{directory}/{name}")  # as old as it is: make compares
    git = ["git", "-C", directory, "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "this tree"]):
        subprocess.run([*git, *command], check=True)


@pytest.fixture(scope="module")
def user(shared):
    """The keys of a command that an unprivileged user runs in a clone that was never built. The
    home also has texts and a virtual environment.
    """
    home = shared.file("home", "text", "web", "x")[: -len("/text/web/x")]
    for path in glob.glob(f"{REPO}/daemon/*.md"):
        shutil.copy(path, f"{home}/text/web")
    clone_into(f"{home}/clone")
    make_environment(f"{home}/venv")
    variables = {name: home for name in ("HOME", "XDG_RUNTIME_DIR", "TMPDIR")}
    variables |= {"PATH": f"{home}/venv/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    options = ("NO_INDEX", "NO_CACHE_DIR", "NO_COMPILE", "DISABLE_PIP_VERSION_CHECK")
    variables |= {f"PIP_{option}": "1" for option in options}
    keys = {"env": variables, "cwd": f"{home}/clone"}
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", home], check=True)
        keys |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    yield keys
    for path in glob.glob(f"{home}/tokend/*.sock"):
        _, out, _ = run(TOKCTL, "status", "--json", "--socket", path, **keys)
        os.kill(json.loads(out.splitlines()[-1])["pid"], signal.SIGTERM)
        assert wait_for(lambda path=path: not os.path.exists(path)), path


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
    fast = {"CFLAGS": "-O0 -g0"}
    keys = user | {"cwd": home, "env": user["env"] | fast, "timeout": 300}
    for command, said in (
        (["pip", "install", url], ""),
        (["tokctl", "--version"], wheel.VERSION),
        (["python", "-m", "tokend", "init", "text/web"], ""),
        (["python", "-m", "tokend", "try"], "the first batch after"),
        (["python", "-c", FIRST_BATCH], "(4, 1024)\n"),
    ):
        code, out, err = run(f"{home}/venv/bin/{command[0]}", *command[1:], **keys)
        assert code == 0 and said in out.decode(), (command, out, err)
    assert not glob.glob(f"{home}/clone/build"), "pip has built its own clone"


def test_a_failed_build_names_all_packages(user, directory):
    """Those of tests/deps.sh, and the compiler's. The compiler names the missing header."""
    (directory / "uv.h").write_text("#error uv.h is not installed\n")
    build = "pip", "install", "./client/python"
    code, _, err = run(*build, **user | {"env": user["env"] | {"CFLAGS": f"-I{directory}"}})
    assert code and "uv.h is not installed" in err, err
    programs = f"{user['env']['HOME']}/venv/bin"  # a fresh machine: not even make
    line = refusal(user, f"{programs}/python", f"{programs}/pip", *build[1:], PATH=programs)
    debian, rpm = re.fullmatch(r".* needs (.*) \(Debian.*\) or (.*) \(Fedora.*\)", line).groups()
    installed = (REPO / "tests/deps.sh").read_text()
    assert {*debian.split()} - {*re.findall(r"[\w-]+", installed)} == {"libc6-dev"}
    assert len(rpm.split()) == len(debian.split())


def test_what_cannot_be_built_is_refused(user):
    sdist = "import wheel; wheel.build_sdist('.')"
    here = user | {"cwd": f"{user['cwd']}/client/python"}
    assert "use a git clone" in refusal(here, "python", "-c", sdist)
    run("cp", "-r", ".", "../../../copied", **here)
    assert "in a git clone, with pip 21.3" in refusal(user, "pip", "install", "../copied")
    code, _, err = run("pip", "install", "-e", "./client/python", **user)
    assert code and [line[:6] for line in err.splitlines()] == ["ERROR:"], err
