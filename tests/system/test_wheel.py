"""The wheel installs into an empty environment without a network, needs only glibc, and works in
embedded mode, and for C and C++ programs.
"""

import glob
import json
import os
import re
import subprocess

import pytest
from embedding import Scene, as_nobody
from packaging.licenses import canonicalize_license_expression
from packaging.metadata import Metadata

from lib import REPO, run, with_parent
from lib.pythons import find_python

pytestmark = pytest.mark.skipif(
    not os.path.exists(f"{REPO}/build/wheel-venv/bin/auditwheel"),
    reason="no build/wheel-venv: tests/deps.sh wheel makes it",
)

VERSION = re.search(r'TOKEND_VERSION "(.*)"', open(f"{REPO}/proto/version.h").read())[1]
OLD_NUMPY = f"{REPO}/build/python3.10"
GLIBC = re.compile(r"/(libc|libm|libpthread|librt|libdl|ld-linux-[^/]*)\.so(\.\d+)?$")
OF_GCC = re.compile(r"/gcc(-cross)?/|libc_nonshared")  # any licence may be linked with them
PIP = ["-m", "pip", "install", "--no-index", "--disable-pip-version-check"]


@pytest.fixture(scope="module", autouse=True)
def without_the_build_tree():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def wheel(shared):
    """Its path. Its name promises Python 3.10 or later, and a glibc not newer than this machine's
    and than 2.34.
    """
    programs, directory = f"{REPO}/build/wheel-venv/bin", shared.file("dist", "x")[:-2]
    pack = [f"{programs}/python", f"{REPO}/client/python/wheel.py", f"{REPO}/build/gcc", directory]
    subprocess.check_call(pack)
    audit = f"{programs}/auditwheel repair --plat auto --patcher none -w".split()
    subprocess.check_call([*audit, f"{directory}/audited", *glob.glob(f"{directory}/*.whl")])
    (wheel,) = glob.glob(f"{directory}/audited/*.whl")
    glibc = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
    tag = re.fullmatch(
        r"tokend-[\d.]+-cp310-abi3-manylinux_(\d+)_(\d+)_(x86_64|aarch64)\.whl",
        os.path.basename(wheel),
    )
    assert tag and (int(tag[1]), int(tag[2])) <= min(glibc, (2, 34)), wheel
    return wheel


@pytest.fixture(scope="module")
def venv(shared, wheel):
    """(directory, site-packages) of an environment with the wheel and NumPy."""
    venv = shared.file("venv", "x")[:-2]
    subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
    subprocess.run([f"{venv}/bin/python", *PIP, wheel], check=True)
    (site,) = glob.glob(f"{venv}/lib/python3*/site-packages")
    (theirs,) = glob.glob(f"{REPO}/build/venv/lib/python3*/site-packages")
    for part in ("numpy", "numpy.libs"):
        os.symlink(os.path.realpath(f"{theirs}/{part}"), f"{site}/{part}")
    return venv, site


def of_user(scene, **more):
    """Removes from a scene's environment what leads to the build tree."""
    kept = ("HOME", "XDG_RUNTIME_DIR", "LINGER")
    scene.environment = {name: scene.environment[name] for name in kept}
    scene.environment |= {"PATH": "/usr/bin:/bin", **more}


def test_metadata(venv):
    """Licence and classifiers are valid. The licences of all that is linked are in the wheel."""
    (info,) = glob.glob(f"{venv[1]}/tokend-*.dist-info")
    with open(f"{info}/METADATA", "rb") as file:
        about = Metadata.from_email(file.read(), validate=True)
    assert str(about.version) == VERSION
    assert about.license_expression == canonicalize_license_expression(about.license_expression)
    assert about.license_expression.startswith("Apache-2.0 AND ") and not about.license
    assert "3.10" in about.requires_python and "3.9" not in about.requires_python
    assert [str(r) for r in about.requires_dist if not r.marker] == [], "it needs no other package"
    files = {os.path.basename(path) for path in glob.glob(f"{info}/licenses/*")}
    assert set(about.license_files) == files > {"LICENSE", "libuv1-dev.copyright"}
    maps = [open(path).read() for path in glob.glob(f"{REPO}/build/gcc/wheel/*.map")]
    linked = {name for text in maps for name in re.findall(r"^(\S+\.a)\(", text, re.M)}
    linked = {path for path in map(os.path.realpath, linked) if not OF_GCC.search(path)}
    owners = run("dpkg", "-S", *sorted(linked))[1].decode().splitlines()
    missing = {f"{line.split(':')[0]}.copyright" for line in owners} - files
    assert owners and not missing, "add them to LINKED in wheel.py"


def test_pages_examples_man_pages_and_completions(venv):
    """Where the environment's --docdir and man find them. The pages' links lead to each other."""
    directory, _ = venv
    code, out, err = run(f"{directory}/bin/python", "-m", "tokend", "--docdir", env={})
    docs = out.decode().strip()
    assert code == 0 and docs == f"{os.path.realpath(directory)}/share/doc/tokend", err
    for name in ("config/tokend.yaml", "client/example/trainers/train_ddp.py"):
        assert open(f"{docs}/{name}").read() == open(f"{REPO}/{name}").read()
    lost = [
        (page, link)
        for page in glob.glob(f"{docs}/**/*.md", recursive=True)
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", open(page).read())
        if not os.path.exists(os.path.join(os.path.dirname(page), link))
    ]
    assert [link for page, link in lost if not page.endswith("tests/README.md")] == [], lost
    code, out, err = run("man", "-w", "tokctl", env={"PATH": f"{directory}/bin:/usr/bin:/bin"})
    assert code == 0 and out.decode().startswith(directory), (out, err)


def test_programs_need_only_glibc(venv):
    """They are whole programs in bin/: no script starts first, and no library is left out."""
    directory, site = venv
    programs = [f"{directory}/bin/{name}" for name in ("tokend", "tokctl")]
    for path in (*programs, f"{site}/tokend/_tokend.abi3.so", f"{site}/tokend/lib/libtokend.so.1"):
        with open(path, "rb") as file:
            assert file.read(4) == b"\x7fELF", path
        _, out, _ = run("ldd", path)
        needed = re.findall(r"=> (\S+)", out.decode())
        assert needed and all(GLIBC.search(os.path.realpath(library)) for library in needed), out
    for command in ([programs[0]], [f"{directory}/bin/python", "-m", "tokend", "ctl"]):
        code, out, err = run(*command, "--version", env={})
        assert code == 0 and VERSION in out.decode(), (command, err)


@pytest.mark.parametrize("compiler", ["gcc -std=gnu11", "g++ -x c++ -std=c++17"])
def test_c_and_cxx_programs_build_and_run_with_the_wheel(place, venv, compiler):
    """pkg-config finds header and library in the wheel; the program needs no LD_LIBRARY_PATH, and
    starts the wheel's daemon.
    """
    directory, site = venv
    scene = Scene(place)
    of_user(scene)
    code, out, err = scene.run(f"{directory}/bin/python", "-m", "tokend", "--pkgconfigdir")
    assert code == 0, err
    named = {"PKG_CONFIG_PATH": out.strip()}
    code, out, err = scene.run("pkg-config", "--cflags", "--libs", "tokend", **named)
    assert code == 0, err
    program, source = place.file("trainer"), f"{REPO}/client/example/trainer.c"
    strict = "-Wall -Wextra -Werror -pedantic".split()
    build = [*compiler.split(), *strict, source, "-o", program, *out.split()]
    assert scene.run(*build) == (0, "", ""), build
    library = re.search(r"libtokend\.so\.1 => (\S+)", run("ldd", program)[1].decode())[1]
    assert os.path.realpath(library) == f"{site}/tokend/lib/libtokend.so.1"
    code, out, err = scene.run(program, "train", scene.config)
    assert (code, err) == (0, "") and "100 steps" in out, (out, err)
    end_daemon(scene, f"{directory}/bin")


def end_daemon(scene, programs):
    """Ends the private daemon, which must be that of @programs."""
    code, out, err = scene.run(f"{programs}/tokctl", "status", "-c", scene.config, "--json")
    assert code == 0, err
    daemon = json.loads(out.splitlines()[-1])
    assert os.readlink(f"/proc/{daemon['pid']}/exe") == f"{os.path.realpath(programs)}/tokend"
    code, _, err = scene.run(f"{programs}/tokctl", "stop", "-c", scene.config)
    assert code == 0 and scene.files() == [], (err, scene.files())


def test_embedded_mode_works_without_the_build_tree(place, venv):
    """As another user, with a config that names the service's socket and state_dir."""
    directory, _ = venv
    roots = {"socket": "/run/tokend/tokend.sock", "state_dir": "/var/lib/not-nobodys"}
    scene = Scene(place, before=as_nobody if os.getuid() == 0 else with_parent, **roots)
    of_user(scene)
    scene.finish(scene.start(batches=50, python=[f"{directory}/bin/python"]))
    end_daemon(scene, f"{directory}/bin")


@pytest.mark.skipif(
    not find_python("3.10") or not os.path.exists(OLD_NUMPY),
    reason="no Python 3.10, or no build/python3.10",
)
def test_python_3_10(place, wheel):
    """The oldest one that is supported, with the packages of `pip install --target`."""
    python, target = find_python("3.10"), place.file("target", "x")[:-2]
    code, _, err = run(python, *PIP, "--target", target, wheel, timeout=200)
    assert code == 0, err
    scene = Scene(place)
    of_user(scene, PYTHONPATH=f"{target}:{OLD_NUMPY}")
    scene.finish(scene.start(batches=50, python=[python]))
    end_daemon(scene, f"{target}/bin")


@pytest.mark.skipif(not find_python("3.9"), reason="no Python 3.9")
def test_pip_refuses_an_older_python(place, wheel):
    command = find_python("3.9"), *PIP, "--target", place.file("target"), wheel
    code, _, err = run(*command, timeout=200)
    assert code == 1 and "not a supported wheel" in err, err
