#!/usr/bin/env python3
"""wheel.py BUILD DIRECTORY: packs the wheel from the results of `make wheel-programs` in BUILD.
pip calls build_wheel() (PEP 517), which also compiles.

It contains the package, the extension, the daemon, tokctl and the man pages; the pages of the
documentation and the examples; and what C programs need (libtokend, its header and tokend.pc).
The programs contain their libraries, and the licence of each is added. So the wheel needs only
glibc, and auditwheel chooses the tag: the oldest glibc that has every symbol used.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The packages that the build needs. On Debian 12 node-llhttp takes the place of libllhttp-dev.
DEBIAN = """gcc make libc6-dev python3-dev libcurl4-openssl-dev libexpat1-dev libjansson-dev
    liburing-dev libllhttp-dev libmsgpack-dev nettle-dev libuv1-dev libxxhash-dev libyaml-dev
    zlib1g-dev libzstd-dev"""
RPM = """gcc make glibc-devel python3-devel libcurl-devel expat-devel jansson-devel liburing-devel
    llhttp-devel msgpack-devel nettle-devel libuv-devel xxhash-devel libyaml-devel zlib-devel
    libzstd-devel"""

# The licences of what is linked into the programs, by Debian package.
LICENSES = {
    "libexpat1-dev": "MIT",
    "libjansson-dev": "MIT",
    "libllhttp-dev": "MIT",
    "liburing-dev": "MIT",  # or LGPL
    "libuv1-dev": "MIT",
    "libyaml-dev": "MIT",
    "libzstd-dev": "BSD-3-Clause",  # or GPL
    "nettle-dev": "LGPL-3.0-or-later",  # or GPL
    "node-llhttp": "MIT",
    "zlib1g-dev": "Zlib",
}

# For the linker, as glibc's libc.so: a wheel cannot contain a symbolic link.
LINK = "INPUT(libtokend.so.1)\n"
# pkg-config replaces ${pcfiledir}, so the package works wherever pip installs it.
PLACES = {
    "PREFIX": "${pcfiledir}/../..",
    "LIBDIR": "${prefix}/lib",
    "RPATH": "-Wl,-rpath,${libdir} ",  # the loader does not look there otherwise
}


def version():
    return re.search(r'TOKEND_VERSION "(.*)"', (ROOT / "proto/version.h").read_text())[1]


def pages():
    """Returns the pages, what they link to, and the examples by their path in the repository."""
    found = [ROOT / name for name in ("README.md", "LICENSE", "client/lib/tokend.h")]
    for room in ("bench", "client", "daemon", "systemd", "tests"):
        found += ROOT.glob(f"{room}/**/*.md")
    for pattern in ("bench/*/*.*g", "config/**/*", "client/example/**/*"):
        found += ROOT.glob(pattern)
    names = {str(path.relative_to(ROOT)): path for path in found if path.is_file()}
    return {name: path for name, path in names.items() if "__pycache__" not in name}


def contents(build):
    """Returns the files by their path in the wheel."""
    package, data = ROOT / "client/python", f"tokend-{version()}.data"
    files = {
        str(path.relative_to(package)): path
        for path in package.glob("tokend/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }
    files["tokend/_tokend.abi3.so"] = build / "wheel/_tokend.abi3.so"
    files["tokend/lib/libtokend.so.1"] = build / "wheel/libtokend.so.1"
    files["tokend/include/tokend.h"] = ROOT / "client/lib/tokend.h"
    for page in (ROOT / "build/gcc/man").iterdir():  # pip installs them into share/man
        files[f"{data}/data/share/man/man{page.suffix[1:]}/{page.name}"] = page
    for page in (ROOT / "build/gcc/completion").iterdir():  # bash looks there, zsh on $fpath
        name = page.name.removesuffix(".bash")
        where = "bash-completion/completions" if page.suffix else "zsh/site-functions"
        files[f"{data}/data/share/{where}/{name}"] = page
    for name, path in pages().items():
        files[f"{data}/data/share/doc/tokend/{name}"] = path
    for program in ("tokend", "tokctl"):
        files[f"{data}/scripts/{program}"] = build / "wheel" / program
    return files


def development():
    """Returns what C programs are linked with, next to library and header."""
    text = (ROOT / "client/lib/tokend.pc.in").read_text()
    for name, value in {**PLACES, "VERSION": version()}.items():
        text = text.replace(f"@{name}@", value)
    return {"tokend/lib/pkgconfig/tokend.pc": text, "tokend/lib/libtokend.so": LINK}


def description():
    """The README without what leads to nowhere outside of the repository: links to its files."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n", "", text, flags=re.M)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def metadata(info, tag):
    """Returns the files below @info that describe the package, with the licences."""
    terms = {"LICENSE": (ROOT / "LICENSE").read_text()}
    for package in LICENSES:
        path = Path("/usr/share/doc", package, "copyright")
        if path.exists():
            terms[f"{package}.copyright"] = path.read_text()
    licenses = " AND ".join(sorted({"Apache-2.0", *LICENSES.values()}))
    lines = [f"License-Expression: {licenses}"] + [
        f"License-File: {name}" for name in sorted(terms)
    ]
    if home := os.environ.get("HOMEPAGE"):  # the one who builds says where the project is
        lines.append(f"Project-URL: Homepage, {home}")
    text = (ROOT / "client/python/METADATA.in").read_text()
    text = text.replace("@VERSION@", version()).replace("@LICENSES@", "\n".join(lines))
    wheel = f"Wheel-Version: 1.0\nGenerator: tokend\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = {f"{info}/licenses/{name}": text for name, text in terms.items()}
    return {f"{info}/METADATA": f"{text}\n{description()}", f"{info}/WHEEL": wheel, **files}


def pack(build, directory):
    """Makes the wheel in @directory, for this machine. Returns its name."""
    machine = "aarch64" if build.name == "arm64" else os.uname().machine
    tag, info = f"cp310-abi3-linux_{machine}", f"tokend-{version()}.dist-info"
    files = {name: path.read_bytes() for name, path in contents(build).items()}
    texts = {**development(), **metadata(info, tag)}
    files |= {name: text.encode() for name, text in texts.items()}
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest())
        lines.append(f"{name},sha256={digest.decode().rstrip('=')},{len(files[name])}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    wheel_name = f"tokend-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(directory, wheel_name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980, so that equal contents give equal wheels
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[name])
    return wheel_name


# ---- for pip ----


def build_wheel(directory, config_settings=None, metadata_directory=None):
    """Compiles, and makes the wheel in @directory. Returns its name. The wheel is for this machine,
    so it needs no auditwheel.
    """
    if sys.version_info < (3, 10):  # noqa: UP036  pip looks only at the result
        sys.exit(f"tokend: Python 3.{sys.version_info[1]} is too old; 3.10 or later is required")
    if not (ROOT / "Makefile").exists():
        sys.exit(f"tokend: no Makefile in {ROOT}: build in a git clone, with pip 21.3 or later")
    command = ["make", "-C", ROOT, "VARIANT=gcc", "wheel-programs"]
    command.append(f"include_python={sysconfig.get_path('include')}")
    if not shutil.which("dpkg"):  # RPM distributions have no archives of most libraries
        command.append("archives=$(LIBS)")
    flags = os.environ.get("CFLAGS", "") + " -Wno-error"  # a newer compiler warns of more
    keys = {"env": {**os.environ, "CFLAGS": flags}, "check": False}
    if not shutil.which("make") or subprocess.run(command, **keys).returncode:
        sys.exit(
            f"tokend: make failed in {ROOT}; the lines above say why. The build needs "
            f"{' '.join(DEBIAN.split())} (Debian, Ubuntu; Debian 12 has node-llhttp instead of "
            f"libllhttp-dev) or {' '.join(RPM.split())} (Fedora, RHEL)"
        )
    return pack(ROOT / "build/gcc", directory)


def build_sdist(directory, config_settings=None):
    sys.exit("tokend: a source archive of client/python cannot be built; use a git clone")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: wheel.py BUILD DIRECTORY")
    build, directory = (Path(name).resolve() for name in sys.argv[1:])
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        plain, repaired = Path(scratch, pack(build, scratch)), Path(scratch, "repaired")
        # Without a patcher it fails if a library is needed that the programs do not contain.
        options = ["--plat", "auto", "--patcher", "none", "-w", str(repaired)]
        command = [Path(sys.executable).parent / "auditwheel", "repair", *options, plain]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"wheel: auditwheel: {done.stderr}")
        (wheel,) = repaired.iterdir()
        for older in directory.glob("tokend-*.whl"):
            older.unlink()
        print(shutil.copy(wheel, directory / wheel.name))


if __name__ == "__main__":
    main()
