"""`import tokend` is fast; the package's programs print their version; an old Python is refused."""

import os
import re
import subprocess
import sys

import pytest
from lib import PACKAGE, REPO
from lib.pythons import find_python

OLD = [version for version in ("3.6", "3.7", "3.8", "3.9") if find_python(version)]
LATER = [version for version in ("3.10", "3.12", "3.13") if find_python(version)]


def python(*arguments, interpreter=sys.executable):
    return subprocess.run(
        [interpreter, *arguments],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PACKAGE),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


REPORT = """
import sys, time
before = set(sys.modules)
begin = time.perf_counter(), time.process_time()
{}
end = time.perf_counter(), time.process_time()
print(f"{{1e3 * (end[0] - begin[0]):.1f}} {{1e3 * (end[1] - begin[1]):.1f}}")
print(*sorted(set(sys.modules) - before))
"""

# modules that a first batch does not need
LATE = ("accelerated", "control", "cursor", "kinds", "mesh", "numpy_arrays", "passes", "same_place")


@pytest.mark.parametrize(
    "statement, most, never",
    [
        ("import tokend", 8, {"typing", "json"}),
        (
            "from tokend import Loader",
            70,
            {
                *("inspect", "socket", "tempfile", "multiprocessing"),
                *(f"tokend.{name}" for name in LATE),
            },
        ),
    ],
)
def test_import_takes_no_time(capsys, statement, most, never):
    """At most 15 ms, which are printed. Asserted is what the time depends on: the modules."""
    done = python(
        "-I", "-c", f"import sys; sys.path.append({str(PACKAGE)!r})\n{REPORT.format(statement)}"
    )
    assert done.returncode == 0, done.stderr
    times, modules = done.stdout.splitlines()
    wall, cpu = times.split()
    modules = set(modules.split())
    with capsys.disabled():
        print(f"\n{statement}: {wall} ms, {cpu} ms of CPU time, {len(modules)} modules")
    assert "tokend._tokend" in modules
    assert not modules & {"torch", "numpy", "dataclasses", "yaml", "transformers", *never}
    assert len(modules) <= most, modules


CALLS = """
import sys, torch, tokend
loader = tokend.Loader("finite", 4, socket=sys.argv[1])
next(loader), next(loader)
before = set(sys.modules)
iter(loader), len(loader), loader.control(), loader.should_stop
with torch.no_grad():
    next(loader)
state = loader.state_dict()
loader.seek(position=8), loader.load_state_dict(state), loader.cursor, loader.mix
print(*sorted(set(sys.modules) - before))
"""


def test_after_the_second_batch_nothing_is_imported(daemon):
    """The package may be replaced while a job runs."""
    done = python("-c", CALLS, daemon.socket)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_names_are_there_without_their_modules():
    done = python(
        "-c",
        "import tokend\n"
        "assert set(tokend.__all__) <= set(dir(tokend))\n"
        "assert all(hasattr(tokend, name) for name in tokend.__all__)\n"
        "assert not hasattr(tokend, 'no_such_name')\n"
        "import tokend; tokend.mesh, tokend.view, tokend.transform, tokend.throughput\n"
        "from tokend import *; Loader, Cursor, TransformError\n",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["tokend", "tokend.tokenize", "tokend.show"])
def test_version(module):
    done = python("-m", module, "--version")
    version = re.search(r'TOKEND_VERSION "(.*)"', open(f"{REPO}/proto/version.h").read())[1]
    assert (done.returncode, done.stdout) == (0, f"tokend {version}\n"), done.stderr


@pytest.mark.skipif(not OLD, reason="no Python older than 3.10")
def test_an_old_python_is_refused_in_one_line():
    for version in OLD:
        interpreter = find_python(version)
        for module in ("tokend", "tokend.tokenize"):
            done = python("-m", module, interpreter=interpreter)
            assert done.returncode == 1
            assert re.fullmatch(
                r"tokend: \S+ is Python 3\.\d+\.\d+; use 3.10 or later\n", done.stderr
            )
        done = python("-c", "import tokend", interpreter=interpreter)
        assert done.stderr.splitlines()[-1].startswith("ImportError: tokend: "), done.stderr


@pytest.mark.skipif(not LATER, reason="no other Python from 3.10 on")
def test_later_pythons_import_every_module():
    """The extension is built once, for the stable ABI. Modules that need a trainer are left out."""
    names = (path.relative_to(PACKAGE) for path in sorted(PACKAGE.glob("tokend/**/*.py")))
    modules = [".".join(name.with_suffix("").parts).removesuffix(".__init__") for name in names]
    code = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert 'integrations' in name or error.name in sys.argv[1:], (name, error)\n"
    )
    foreign = ["torch", "numpy", "lightning", "transformers"]
    for version in LATER:
        done = python("-c", code, *foreign, interpreter=find_python(version))
        assert done.returncode == 0, (version, done.stderr)
