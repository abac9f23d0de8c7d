"""The README's first steps, by copy and paste: an unprivileged user, a fresh virtual environment,
text of one's own. It prints what a person would see, and when.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from lib import REPO, TOKCTL, run, wait_for
from lib.pages import blocks, console, missing

NOBODY = 65534
HEADING = "\n## Start with your text"
TEXTS = {"web": "tests/*.md", "code": "tests/python/*.py"}
SCRIPT = """\
#!{python}
from {module} import main
raise SystemExit(main())
"""

pytestmark = pytest.mark.skipif(
    not os.path.exists(f"{REPO}/build/wheel-venv/bin/auditwheel"),
    reason="no build/wheel-venv: tests/deps.sh wheel makes it",
)


def section():
    text = (REPO / "README.md").read_text()
    return HEADING + text.partition(HEADING)[2].partition("\n## ")[0]


def steps():
    """The (command, output) pairs that the section shows."""
    pairs = []
    for block in blocks("README.md", section()):
        if block.kind == "console":
            pairs += console(block.text)
        elif block.kind == "sh" and "rm tokend.yaml" not in block.text:  # hidden, for the page
            pairs.append((block.text.rstrip(), ""))
    return pairs


def environment(home):
    """Makes a virtual environment. pip and torch are those of build/venv, as if installed."""
    venv = f"{home}/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    (theirs,) = glob.glob(f"{REPO}/build/venv/lib/python3*/site-packages")
    with open(f"{site}/torch.pth", "w") as file:
        file.write(os.path.realpath(theirs) + "\n")
    for name, module in (("pip", "pip._internal.cli.main"), ("torchrun", "torch.distributed.run")):
        with open(f"{venv}/bin/{name}", "w") as file:
            file.write(SCRIPT.format(python=f"{venv}/bin/python", module=module))
        os.chmod(f"{venv}/bin/{name}", 0o755)
    return venv


def home_of(place):
    """A home directory with texts, a checkout with the wheel, and a virtual environment."""
    home = place.file("home", "x")[:-2]
    for name, pattern in TEXTS.items():
        os.makedirs(f"{home}/text/{name}")
        for path in glob.glob(f"{REPO}/{pattern}"):
            shutil.copy(path, f"{home}/text/{name}")
    python = f"{REPO}/build/wheel-venv/bin/python"
    wheel = f"{REPO}/client/python/wheel.py", f"{REPO}/build/gcc", f"{home}/build/dist"
    code, _, err = run(python, *wheel, timeout=200)
    assert code == 0, err
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
    return home, {"env": variables, "cwd": home, **user}


def end_daemons(home, keys):
    for path in glob.glob(f"{home}/tokend/*.sock"):
        code, out, err = run(TOKCTL, "status", "--json", "--socket", path, **keys)
        assert code == 0, err
        os.kill(json.loads(out.splitlines()[-1])["pid"], signal.SIGTERM)
        assert wait_for(lambda path=path: not os.path.exists(path)), path


def test_the_first_page_by_copy_and_paste(place, capsys):
    shown = steps()
    home, keys = home_of(place)
    begin = time.monotonic()
    try:
        for command, expected in shown:
            at = time.monotonic() - begin
            done = subprocess.run(
                ["bash", "-ec", command.removeprefix("make wheel && ")],  # it is built
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                **keys,
            )
            with capsys.disabled():  # into the log, also of a run that passes
                print(f"{at:6.2f} s  $ {command}\n{done.stdout}")
            assert done.returncode == 0, f"{command}:\n{done.stdout}"
            in_order = not command.startswith("torchrun ")
            line = missing(expected, done.stdout, in_order)
            assert line is None, f"{command}: not in its output: {line}\n{done.stdout}"
        with capsys.disabled():
            print(f"{time.monotonic() - begin:6.2f} s  to the end of the training")
    finally:
        end_daemons(home, keys)
    assert len(shown) > 3 and os.stat(f"{home}/tokend.yaml").st_uid == keys.get("user", os.getuid())
