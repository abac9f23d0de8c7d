"""The home of a user who has just cloned tokend. Unprivileged, also if the tests run as root."""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from lib import REPO, TOKCTL, run, wait_for

NOBODY = 65534
TEXTS = {"web": "tests/*.md", "code": "tests/python/*.py"}
SCRIPT = """\
#!{python}
from pip._internal.cli.main import main
raise SystemExit(main())
"""


def environment(home):
    """Makes a virtual environment. pip and torch are those of build/venv, as if installed."""
    venv = f"{home}/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    (theirs,) = glob.glob(f"{REPO}/build/venv/lib/python3*/site-packages")
    with open(f"{site}/torch.pth", "w") as file:
        file.write(os.path.realpath(theirs) + "\n")
    with open(f"{venv}/bin/pip", "w") as file:
        file.write(SCRIPT.format(python=f"{venv}/bin/python"))
    os.chmod(f"{venv}/bin/pip", 0o755)
    return venv


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


def home_of(place):
    """A home directory with texts, a clone that was never built, and a virtual environment. Returns
    it, and the keys of a command that its owner runs in the clone.
    """
    home = place.file("home", "x")[:-2]
    for name, pattern in TEXTS.items():
        os.makedirs(f"{home}/text/{name}")
        for path in glob.glob(f"{REPO}/{pattern}"):
            shutil.copy(path, f"{home}/text/{name}")
    clone = f"{home}/clone"
    clone_into(clone)
    venv = environment(home)
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    if user:
        for at, directories, files in os.walk(home):
            for name in (at, *(os.path.join(at, name) for name in directories + files)):
                os.lchown(name, NOBODY, NOBODY)
    variables = {
        "HOME": home,
        "PATH": f"{venv}/bin:/usr/bin:/bin",
        "XDG_RUNTIME_DIR": home,
        "TMPDIR": home,
        "PIP_NO_INDEX": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    return home, {"env": variables, "cwd": clone, **user}


def end_daemons(home, keys):
    for path in glob.glob(f"{home}/tokend/*.sock"):
        code, out, err = run(TOKCTL, "status", "--json", "--socket", path, **keys)
        assert code == 0, err
        os.kill(json.loads(out.splitlines()[-1])["pid"], signal.SIGTERM)
        assert wait_for(lambda path=path: not os.path.exists(path)), path
