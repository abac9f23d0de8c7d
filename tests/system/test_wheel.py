"""The wheel installs into an empty environment without a network, needs only glibc, and works in
embedded mode, and for C and C++ programs.
"""

import glob
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy
import pytest
from packaging.licenses import canonicalize_license_expression
from packaging.metadata import Metadata

from lib import BIN, REPO, datasets, has, run, status, wait_for
from lib.pythons import find_python

pytestmark = pytest.mark.skipif(
    not os.path.exists(f"{REPO}/build/wheel-venv/bin/auditwheel"),
    reason="no build/wheel-venv: tests/deps.sh wheel makes it",
)


VERSION = re.search(r'TOKEND_VERSION "(.*)"', open(f"{REPO}/proto/version.h").read())[1]
NOBODY = 65534
OLD_NUMPY = f"{REPO}/build/python3.10"
GLIBC = re.compile(r"/(libc|libm|libpthread|librt|libdl|ld-linux-[^/]*)\.so(\.\d+)?$")

# Run in an empty directory. Prints a report as JSON.
TRAINER = """
import json, os, subprocess, sys, sysconfig, zlib
import numpy, tokend
from tokend._tokend import program

try:
    import torch
except ImportError:
    torch = None
with tokend.Loader("train", 2, config="tokend.yaml", record="records") as loader:
    rows = [batch["input_ids"] for _, batch in zip(range(50), loader)]
    state = loader.state_dict()
with tokend.Loader(
    "train", 2, config="tokend.yaml", record="records", start=state["cursor"]
) as loader:
    rows += [batch["input_ids"] for _, batch in zip(range(50), loader)]
    tokctl = [program("tokctl"), "status", "-c", "tokend.yaml", "--json"]
    status = json.loads(
        subprocess.run(tokctl, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    maps = sorted(
        {line.split()[-1] for line in open(f"/proc/{status['pid']}/maps") if ".so" in line}
    )
print(
    json.dumps(
        {
            "torch": torch is not None,
            "uid": os.getuid(),
            "python": sys.version_info[:2],
            "package": tokend.__file__,
            "maps": maps,
            "pid": status["pid"],
            "socket": status["socket"],
            "kind": type(rows[0]).__module__,
            "crc": zlib.crc32(numpy.concatenate(rows).astype("<u2").tobytes()),
        }
    )
)
"""


HOMEPAGE = "https://tokend.example/home"


# Each worker adds 1 to the tokens. Position 40 fails.
WORKERS = """
import sys
sys.path.remove(sys.path[0])
import json, tokend
sys.path.insert(0, "")

def raises_at_40(tokens, position, rng):
    if position == 40:
        raise ValueError("forty")
    return tokens * 0 + 1

if __name__ == "__main__":
    keys = {"config": "tokend.yaml", "run": "w", "transform": raises_at_40, "workers": 2}
    with tokend.Loader("train", 4, **keys) as loader:
        rows = [batch["input_ids"] for _, batch in zip(range(10), loader)]
        print([int(rows[-1].max()), sum(len(row) for row in rows)], flush=True)
        next(loader)
"""


def build(place):
    """Makes the wheel, and checks its name. Returns its path."""
    code, out, err = run(
        f"{REPO}/build/wheel-venv/bin/python",
        f"{REPO}/client/python/wheel.py",
        f"{REPO}/build/gcc",
        place.file("dist", "x")[:-2],
        timeout=200,
        env={**os.environ, "HOMEPAGE": HOMEPAGE},
    )
    assert code == 0, ("make wheel", err)
    wheel = out.decode().strip()
    name = os.path.basename(wheel)
    glibc = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    tag = re.fullmatch(
        r"tokend-([\d.]+)-cp310-abi3-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl", name
    )
    assert tag and (int(tag[2]), int(tag[3])) <= min(glibc, (2, 34)), (
        "its tag: Python 3.10 or later, a glibc not newer than this machine's and than 2.34",
        name,
    )
    return wheel


def environment(place, wheel):
    """Makes a virtual environment with the wheel and NumPy. Returns (directory, site-packages)."""
    venv = place.file("venv", "x")[:-2]
    subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
    code, _, err = run(
        f"{venv}/bin/pip",
        "install",
        "--disable-pip-version-check",
        "--no-index",
        wheel,
        timeout=200,
    )
    assert code == 0, ("pip install, without an index", err)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    (theirs,) = glob.glob(f"{REPO}/build/venv/lib/python3*/site-packages")
    for part in ("numpy", "numpy.libs"):
        os.symlink(os.path.realpath(f"{theirs}/{part}"), f"{site}/{part}")
    return venv, site


def programs(venv):
    return [f"{venv}/bin/{name}" for name in ("tokend", "tokctl")]


def test_metadata(venv):
    """Licence, links, classifiers and description are valid, and pip shows them."""
    _, site = venv
    (info,) = glob.glob(f"{site}/tokend-*.dist-info")
    with open(f"{info}/METADATA", "rb") as file:
        about = Metadata.from_email(file.read(), validate=True)
    assert str(about.version) == VERSION == importlib.metadata.PathDistribution(Path(info)).version
    assert about.license_expression == canonicalize_license_expression(about.license_expression)
    assert about.license_expression.startswith("Apache-2.0 AND ") and not about.license
    assert not [c for c in about.classifiers if c.startswith("License ::")], "PEP 639 forbids both"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.10"} <= set(about.classifiers)
    assert "3.10" in about.requires_python and "3.9" not in about.requires_python
    assert [str(r) for r in about.requires_dist if not r.marker] == [], "it needs no other package"
    assert about.project_urls == {"Homepage": HOMEPAGE}
    assert about.description_content_type == "text/markdown"
    readme = open(f"{REPO}/README.md").read()
    assert about.description.split("\n")[0] == readme.split("\n")[0]
    links = re.findall(r"\]\(([^)]*)\)", about.description)
    assert [link for link in links if not link.startswith("http")] == [], "they lead nowhere there"
    files = {os.path.basename(path) for path in glob.glob(f"{info}/licenses/*")}
    assert set(about.license_files) == files > {"LICENSE", "libuv1-dev.copyright"}
    assert not any("gnutls" in open(f"{info}/licenses/{name}").read() for name in files)


def test_pages_and_examples(venv):
    """The pages are in the environment's share/doc, and their links lead to each other."""
    directory, _ = venv
    code, out, err = run(f"{directory}/bin/python", "-m", "tokend", "--docdir")
    docs = out.decode().strip()
    assert code == 0 and docs == f"{os.path.realpath(directory)}/share/doc/tokend", err
    for name in ("config/tokend.yaml", "client/example/trainers/train_ddp.py"):
        assert open(f"{docs}/{name}").read() == open(f"{REPO}/{name}").read()
    code, out, err = run(f"{directory}/bin/tokend", "--check", "-c", f"{docs}/config/tokend.yaml")
    assert code == 1 and has(err, "web.jsonl"), "it is a config, for other shards"
    lost = [
        (page, link)
        for page in glob.glob(f"{docs}/**/*.md", recursive=True)
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", open(page).read())
        if not os.path.exists(os.path.join(os.path.dirname(page), link))
    ]
    assert [link for _, link in lost] == ["FILE"], lost


def test_programs_need_only_glibc(venv):
    """They are whole programs in bin/: no script starts first, and no library is left out."""
    directory, site = venv
    for path in [
        *programs(directory),
        f"{site}/tokend/_tokend.abi3.so",
        f"{site}/tokend/lib/libtokend.so.1",
    ]:
        with open(path, "rb") as file:
            assert file.read(4) == b"\x7fELF", path
        _, out, _ = run("ldd", path)
        needed = re.findall(r"=> (\S+)", out.decode())
        assert needed and all(GLIBC.search(os.path.realpath(library)) for library in needed), out
    assert not os.path.exists(f"{site}/tokend.libs")


def test_commands_run_from_the_wheel(venv):
    venv, _ = venv
    for command in (
        ["tokend"],
        ["tokctl"],
        ["python", "-m", "tokend", "daemon"],
        ["python", "-m", "tokend", "ctl"],
    ):
        code, out, err = run(f"{venv}/bin/{command[0]}", *command[1:], "--version")
        assert code == 0 and VERSION in out.decode(), (" ".join(command) + " --version", (out, err))
    reader = subprocess.Popen(
        [f"{venv}/bin/tokctl", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    reader.stdout.close()  # like `| head`: SIGPIPE ends tokctl without a message
    assert reader.wait(20) in (-13, 0) and reader.stderr.read() == b"", (
        "tokctl | head",
        reader.returncode,
    )


def test_man_pages_and_completions(venv):
    """They are where man looks for the pages of programs in the environment's bin."""
    venv, _ = venv
    for page in ("man1/tokctl.1", "man8/tokend.8", "man5/tokend.yaml.5"):
        path = f"{venv}/share/man/{page}"
        assert open(path).read() == open(f"{REPO}/build/gcc/man/{os.path.basename(page)}").read()
    for name in ("bash-completion/completions/tokctl", "zsh/site-functions/_tokctl"):
        assert "rescale" in open(f"{venv}/share/{name}").read()
    path = {**os.environ, "PATH": f"{venv}/bin:/usr/bin:/bin"}
    code, out, err = run("man", "-w", "tokctl", env=path)
    assert code == 0 and out.decode().startswith(venv), (out, err)


def system_copies():
    """The libraries that the programs of a build need, which other machines may lack."""
    _, out, _ = run("ldd", f"{BIN}/tokend", f"{BIN}/tokctl")
    _, pythons, _ = run("ldd", "/usr/bin/python3")
    found = set(re.findall(r"=> (/\S+)", out.decode())) - set(
        re.findall(r"=> (/\S+)", pythons.decode())
    )
    return sorted(os.path.realpath(path) for path in found)


def check_embedded(place, python, site, programs, uid, hidden=(), path=None):
    """In an empty directory. @hidden: files of the system that appear empty."""
    name = f"{python} as {uid}"
    here = place.file(f"work{uid}", "x")[:-2]
    place.shard(f"work{uid}/web/a.bin", 60_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "vocab": 50000, "datasets": datasets("web")}}
    roots = {"socket": "/run/tokend/tokend.sock", "state_dir": "/var/lib/not-nobodys"}
    config = place.config(f"work{uid}/tokend.yaml", streams=streams, **roots)
    script = place.file(f"work{uid}", "trainer.py")
    with open(script, "w") as f:
        f.write(TRAINER)
    command = [python, "trainer.py"]
    if os.getuid() != uid:
        os.chown(here, uid, uid)
        command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *command]
    if hidden:
        mounts = " && ".join(f"mount --bind /dev/null {path}" for path in hidden)
        hide = ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', "sh"]
        command = [*hide, *command]
        code, _, err = run(*hide, f"{BIN}/tokend", "--version")
        assert code == 127 and "shared lib" in err, (
            "without the system's libraries a tokend that needs them does not start",
            err,
        )
    environment = {"PATH": "/usr/bin:/bin", "HOME": here, "XDG_RUNTIME_DIR": here}
    if path:
        environment["PYTHONPATH"] = path
    keys = {
        "cwd": here,
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": 100,
        "check": False,
    }
    done = subprocess.run(command, **keys)
    assert done.returncode == 0 and not done.stderr, (f"{name}: it trains and resumes", done.stderr)
    saw = json.loads(done.stdout)
    assert (saw["torch"], saw["kind"], saw["package"]) == (
        False,
        "numpy",
        f"{site}/tokend/__init__.py",
    ), f"{name}: without torch, from the wheel"
    assert saw["uid"] == uid
    assert saw["socket"].startswith(f"{here}/tokend/"), (
        f"{name}: a private daemon serves",
        saw["socket"],
    )
    foreign = [path for path in saw["maps"] if not GLIBC.search(path)]
    assert saw["maps"] and not foreign, (
        f"{name}: which has mapped no library of the system except glibc",
        foreign or saw["maps"],
    )
    arguments = "plan", "-c", config, "train", "--from", 0, "--count", 200, "--json"
    code, out, err = run(f"{programs}/tokctl", *arguments, env=environment)
    tokens = numpy.fromfile(f"{here}/web/a.bin", "<u2")
    rows = [
        tokens[at : at + 64] for at in (json.loads(line)["offset"] for line in out.splitlines())
    ]
    assert saw["crc"] == zlib.crc32(numpy.concatenate(rows).tobytes()), (
        f"{name}: the order is right"
    )
    arguments = "verify", "-c", config, "train", f"{here}/records", "--run", "default", "--json"
    code, out, err = run(f"{programs}/tokctl", *arguments, env=environment)
    proof = json.loads(out)
    seen = [code, *(proof[name] for name in ("samples", "repeated", "lost", "altered", "skipped"))]
    assert seen == [0, 200, 0, 0, 0, 0], f"{name}: tokctl verify"
    os.kill(saw["pid"], signal.SIGTERM)
    assert wait_for(lambda: not os.path.exists(f"{here}/tokend")), (
        f"{name}: all files are removed",
        glob.glob(f"{here}/tokend/*"),
    )
    return saw


@pytest.fixture(scope="module", autouse=True)
def without_the_build_tree():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def wheel(shared):
    return build(shared)


@pytest.fixture(scope="module")
def venv(shared, wheel):
    """(directory, site-packages) of an environment with the wheel."""
    return environment(shared, wheel)


def test_only_the_wheel_has_a_directory_for_pkg_config():
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPO}/build/python"}
    code, out, err = run(sys.executable, "-m", "tokend", "--pkgconfigdir", env=own)
    assert (code, out) == (1, b"") and "wheel" in err


@pytest.mark.parametrize(
    "compiler", ["gcc -std=gnu11", "g++ -x c++ -std=c++17", "clang++ -x c++ -std=c++17"]
)
def test_c_and_cxx_programs_build_and_run_with_the_wheel(place, venv, compiler):
    """pkg-config finds header and library in the wheel; the program needs no LD_LIBRARY_PATH, and
    starts the wheel's daemon.
    """
    directory, site = venv
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "vocab": 50000, "datasets": datasets("web")}}
    config = place.config(streams=streams)
    environment = {"PATH": os.environ["PATH"]}
    code, out, err = run(f"{directory}/bin/python", "-m", "tokend", "--pkgconfigdir")
    assert code == 0, err
    environment["PKG_CONFIG_PATH"] = out.decode().strip()
    code, out, err = run("pkg-config", "--cflags", "--libs", "tokend", env=environment)
    assert code == 0, err
    program, source = place.file("trainer"), f"{REPO}/client/example/trainer.c"
    strict = "-Wall -Wextra -Werror -pedantic".split()
    build = [*compiler.split(), *strict, source, "-o", program, *out.decode().split()]
    assert run(*build, env=environment) == (0, b"", ""), build
    library = re.search(r"libtokend\.so\.1 => (\S+)", run("ldd", program)[1].decode())[1]
    assert os.path.realpath(library) == f"{site}/tokend/lib/libtokend.so.1"
    environment["XDG_RUNTIME_DIR"] = place.file("run", "")
    code, out, err = run(program, "train", config, env=environment)
    assert (code, err) == (0, "") and b"100 steps" in out, (out, err)
    (socket,) = glob.glob(place.file("run", "tokend", "*.sock"))
    daemon = status(socket)[1]["pid"]
    assert os.readlink(f"/proc/{daemon}/exe") == f"{os.path.realpath(directory)}/bin/tokend"
    os.kill(daemon, signal.SIGTERM)  # otherwise it lives for another minute


def test_embedded_mode_works_without_the_systems_libraries(shared, venv):
    directory, site = venv
    can_hide = os.getuid() == 0 and shutil.which("unshare")
    uid, hidden = (NOBODY, system_copies()) if can_hide else (os.getuid(), [])
    check_embedded(shared, f"{directory}/bin/python", site, f"{directory}/bin", uid, hidden)
    if not can_hide:
        pytest.skip("it works, but hiding the system's libraries needs root")


@pytest.mark.skipif(
    not find_python("3.10") or not os.path.exists(OLD_NUMPY),
    reason="no Python 3.10, or no build/python3.10",
)
def test_python_3_10(shared, venv, wheel):
    """The oldest one that is supported, with the packages of `pip install --target`."""
    python, target = find_python("3.10"), shared.file("target", "x")[:-2]
    options = ["--no-index", "--disable-pip-version-check", "--target", target]
    code, _, err = run(python, "-m", "pip", "install", *options, wheel, timeout=200)
    assert code == 0, err
    path = f"{target}:{OLD_NUMPY}"
    saw = check_embedded(shared, python, target, f"{target}/bin", os.getuid(), path=path)
    assert saw["python"] == [3, 10]
    here = shared.file(f"work{os.getuid()}", "x")[:-2]
    with open(f"{here}/workers.py", "w") as file:
        file.write(WORKERS)
    with open(f"{here}/json.py", "w") as file:
        file.write("raise SystemExit('not the one of Python')")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "XDG_RUNTIME_DIR": here}
    code, out, err = run(python, "workers.py", cwd=here, env=environment)
    assert code == 1 and out == b"[1, 40]\n", err
    assert "ValueError: forty" in err and "in raises_at_40" in err, "with the worker's traceback"


@pytest.mark.skipif(not find_python("3.9"), reason="no Python 3.9")
def test_pip_refuses_an_older_python(place, wheel):
    options = ["--no-index", "--disable-pip-version-check", "--target", place.file("target")]
    code, _, err = run(find_python("3.9"), "-m", "pip", "install", *options, wheel, timeout=200)
    assert code == 1 and "not a supported wheel" in err, err
