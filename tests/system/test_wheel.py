"""The wheel installs into an empty environment without a network, needs only glibc, and works in
embedded mode, and for C and C++ programs.
"""

import email
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib

import numpy
import pytest

from lib import BIN, REPO, datasets, run, status, wait_for, with_parent

pytestmark = pytest.mark.skipif(
    not os.path.exists(f"{REPO}/build/wheel-venv/bin/auditwheel"),
    reason="no build/wheel-venv: tests/deps.sh wheel makes it",
)


NOBODY = 65534
GLIBC = re.compile(r"/(libc|libm|libpthread|librt|libdl|ld-linux-[^/]*)\.so(\.\d+)?$")

# Run in an empty directory. Prints a report as JSON.
TRAINER = """
import json, os, subprocess, sys, sysconfig, zlib
import numpy, tokend

try:
    import torch
except ImportError:
    torch = None
scripts = os.path.dirname(sys.executable)
with tokend.Loader("train", 2, config="tokend.yaml", record="records") as loader:
    rows = [batch["input_ids"] for _, batch in zip(range(50), loader)]
    state = loader.state_dict()
with tokend.Loader(
    "train", 2, config="tokend.yaml", record="records", start=state["cursor"]
) as loader:
    rows += [batch["input_ids"] for _, batch in zip(range(50), loader)]
    tokctl = [f"{scripts}/tokctl", "status", "-c", "tokend.yaml", "--json"]
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


def build(place):
    """Makes the wheel, and checks its names and metadata. Returns its path."""
    python = f"{REPO}/build/wheel-venv/bin/python"
    code, out, err = run(
        python, f"{REPO}/client/python/wheel.py", place.file("dist", "x")[:-2], timeout=200
    )
    assert code == 0, ("make wheel", err)
    wheel = out.decode().strip()
    name = os.path.basename(wheel)
    glibc = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    tag = re.fullmatch(
        r"tokend-([\d.]+)-cp311-abi3-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl", name
    )
    assert tag and (int(tag[2]), int(tag[3])) <= glibc, (
        "its tag: Python 3.11 or later, a glibc not newer than this machine's",
        name,
    )
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        about = email.message_from_bytes(
            archive.read(next(n for n in names if n.endswith("dist-info/METADATA")))
        )
    assert [n for n in about.get_all("Requires-Dist") if "extra" not in n] == [], (
        "it needs no other package"
    )
    brought = [n for n in names if re.match(r"tokend\.libs/.", n)]
    licenses = {os.path.basename(n) for n in names if "/licenses/" in n and not n.endswith("/")}
    assert len(licenses) == len(brought) + 1 > 6, (
        "it contains the licence of each library",
        (brought, licenses),
    )
    assert set(about.get_all("License-File")) == licenses, (
        "the metadata names them",
        about.get_all("License-File"),
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


def bundled(site):
    """Every program and library of the wheel."""
    return [
        path
        for part in ("tokend/bin/*", "tokend/*.so", "tokend/lib/*", "tokend.libs/*")
        for path in glob.glob(f"{site}/{part}")
    ]


def test_libraries_come_from_the_wheel(venv):
    """Every library is found in the wheel, or belongs to glibc."""
    _, site = venv
    outside = set()
    for path in bundled(site):
        code, out, err = run("ldd", path)
        found = dict(re.findall(r"^\s*(\S+) => (.+?)(?: \(0x.*)?$", out.decode(), re.M))
        outside |= {
            where
            for where in map(os.path.realpath, found.values())
            if not where.startswith(site) and not GLIBC.search(where)
        }
    assert len(bundled(site)) > 10 and not outside, (
        "all libraries come from the wheel or from glibc",
        outside,
    )


def test_commands_run_from_the_wheel(venv):
    venv, _ = venv
    version = re.search(r'TOKEND_VERSION "(.*)"', open(f"{REPO}/proto/version.h").read())[1]
    for command in (
        ["tokend"],
        ["tokctl"],
        ["python", "-m", "tokend", "daemon"],
        ["python", "-m", "tokend", "ctl"],
    ):
        code, out, err = run(f"{venv}/bin/{command[0]}", *command[1:], "--version")
        assert code == 0 and version in out.decode(), (" ".join(command) + " --version", (out, err))
    code, out, err = run(
        f"{venv}/bin/tokctl", "--version", env={**os.environ, "TOKEND_BIN": f"{venv}/bin"}
    )
    assert code == 0 and version in out.decode(), (
        "TOKEND_BIN may name the directory of the commands",
        (out, err),
    )
    code, out, err = run("./tokctl", "--version", cwd=f"{venv}/bin")
    assert code == 0 and version in out.decode(), ("in the directory of the commands", (out, err))
    reader = subprocess.Popen(
        [f"{venv}/bin/tokctl", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    reader.stdout.close()  # like `| head`: SIGPIPE ends tokctl without a message
    assert reader.wait(20) in (-13, 0) and reader.stderr.read() == b"", (
        "tokctl | head",
        reader.returncode,
    )


def test_man_pages(venv):
    """They are where man looks for the pages of programs in the environment's bin."""
    venv, _ = venv
    for page in ("man1/tokctl.1", "man8/tokend.8", "man5/tokend.yaml.5"):
        path = f"{venv}/share/man/{page}"
        assert open(path).read() == open(f"{REPO}/build/gcc/man/{os.path.basename(page)}").read()
    path = {**os.environ, "PATH": f"{venv}/bin:/usr/bin:/bin"}
    code, out, err = run("man", "-w", "tokctl", env=path)
    assert code == 0 and out.decode().startswith(venv), (out, err)


def system_copies(site):
    """The system's copies of the wheel's libraries, which other machines may lack."""
    stems = {
        re.sub(r"-[0-9a-f]{8}\.so.*", "", os.path.basename(path))
        for path in glob.glob(f"{site}/tokend.libs/*")
    }
    found = {
        os.path.realpath(p)
        for stem in stems
        for place in ("/lib", "/usr/lib")
        for p in glob.glob(f"{place}/*-linux-gnu/{stem}.so*")
    }
    return sorted(found)


def check_embedded(place, venv, site, hidden):
    """As nobody, in an empty directory. @hidden: files of the system that appear empty."""
    name = "without the system's libraries" if hidden else "with the system's libraries"
    here = place.file(f"work{len(hidden)}", "x")[:-2]
    place.shard(f"work{len(hidden)}/web/a.bin", 60_000)
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}}
    roots = {"socket": "/run/tokend/tokend.sock", "state_dir": "/var/lib/not-nobodys"}
    config = place.config(f"work{len(hidden)}/tokend.yaml", streams=streams, **roots)
    script = place.file(f"work{len(hidden)}", "trainer.py")
    with open(script, "w") as f:
        f.write(TRAINER)
    command = [f"{venv}/bin/python", "trainer.py"]
    if os.getuid() == 0:
        os.chown(here, NOBODY, NOBODY)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
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
    keys = {
        "cwd": here,
        "env": environment,
        "capture_output": True,
        "text": True,
        "timeout": 100,
        "check": False,
    }
    done = subprocess.run(command, preexec_fn=with_parent, **keys)
    assert done.returncode == 0 and not done.stderr, (f"{name}: it trains and resumes", done.stderr)
    saw = json.loads(done.stdout)
    assert (saw["torch"], saw["kind"], saw["package"]) == (
        False,
        "numpy",
        f"{site}/tokend/__init__.py",
    ), f"{name}: without torch, from the wheel"
    if os.getuid() == 0:
        assert saw["uid"] == NOBODY, f"{name}: as nobody"
    assert saw["socket"].startswith(f"{here}/tokend/"), (
        f"{name}: a private daemon serves",
        saw["socket"],
    )
    foreign = [path for path in saw["maps"] if not path.startswith(site) and not GLIBC.search(path)]
    assert len(saw["maps"]) > 8 and not foreign, (
        f"{name}: which has mapped no library of the system except glibc",
        foreign or saw["maps"],
    )
    arguments = "plan", "-c", config, "train", "--from", 0, "--count", 200, "--json"
    code, out, err = run(f"{venv}/bin/tokctl", *arguments, env=environment)
    tokens = numpy.fromfile(f"{here}/web/a.bin", "<u2")
    rows = [
        tokens[at : at + 64] for at in (json.loads(line)["offset"] for line in out.splitlines())
    ]
    assert saw["crc"] == zlib.crc32(numpy.concatenate(rows).tobytes()), (
        f"{name}: the order is right"
    )
    arguments = "verify", "-c", config, "train", f"{here}/records", "--run", "default", "--json"
    code, out, err = run(f"{venv}/bin/tokctl", *arguments, env=environment)
    proof = json.loads(out)
    seen = [code, *(proof[name] for name in ("samples", "repeated", "lost", "altered", "skipped"))]
    assert seen == [0, 200, 0, 0, 0, 0], f"{name}: tokctl verify"
    os.kill(saw["pid"], signal.SIGTERM)
    assert wait_for(lambda: not os.path.exists(f"{here}/tokend")), (
        f"{name}: all files are removed",
        glob.glob(f"{here}/tokend/*"),
    )


@pytest.fixture(scope="module", autouse=True)
def without_the_build_tree():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def venv(shared):
    """(directory, site-packages) of an environment with the wheel."""
    return environment(shared, build(shared))


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
    streams = {"train": {"seed": 3, "seq_len": 64, "datasets": datasets("web")}}
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
    assert os.readlink(f"/proc/{daemon}/exe") == f"{site}/tokend/bin/tokend"
    os.kill(daemon, signal.SIGTERM)  # otherwise it lives for another minute


def test_embedded_mode_works(shared, venv):
    check_embedded(shared, *venv, [])


def test_embedded_mode_works_without_the_systems_libraries(shared, venv):
    hidden = system_copies(venv[1])
    if os.getuid() != 0 or not shutil.which("unshare") or not hidden:
        pytest.skip("hiding the system's libraries needs root")
    check_embedded(shared, *venv, hidden)
