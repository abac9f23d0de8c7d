#!/usr/bin/env python3
"""wheel.py BUILD DIRECTORY: packs the wheel from the results of `make wheel-programs` in BUILD.
pip calls build_wheel() (PEP 517), which also compiles.

It contains the package, the extension, the daemon, tokctl and the man pages; the pages of the
documentation and the examples; and what C programs need (libtokend, its header and tokend.pc).
The programs contain their libraries, and the licence of each is added. So the wheel needs only
glibc. `make wheel` has auditwheel choose the tag: the oldest glibc that has every symbol used.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "Makefile").exists():
    sys.exit(f"tokend: no Makefile in {ROOT}: build in a git clone, with pip 21.3 or later")
VERSION = re.search(r'TOKEND_VERSION "(.*)"', (ROOT / "proto/version.h").read_text())[1]

# The packages that the build needs. On Debian 12 node-llhttp takes the place of libllhttp-dev.
LINKED = """libexpat1-dev libjansson-dev libllhttp-dev liburing-dev libuv1-dev libyaml-dev
    libzstd-dev nettle-dev zlib1g-dev"""  # METADATA.in names their licences
DEBIAN = f"""gcc make libc6-dev python3-dev libcurl4-openssl-dev libmsgpack-dev libxxhash-dev
    {LINKED}"""
RPM = """gcc make glibc-devel python3-devel libcurl-devel expat-devel jansson-devel liburing-devel
    llhttp-devel msgpack-devel nettle-devel libuv-devel xxhash-devel libyaml-devel zlib-devel
    libzstd-devel"""

# The pages, what they link to, and the examples.
PAGES = """README.md LICENSE client/lib/tokend.h bench/**/*.md client/**/*.md daemon/**/*.md
    systemd/**/*.md tests/**/*.md bench/*/*.*g config/**/* client/example/**/*"""
# For the linker, as glibc's libc.so: a wheel cannot contain a symbolic link.
LINK = "INPUT(libtokend.so.1)\n"


def contents(build, tag):
    """Returns the files' bytes by their name in the wheel."""
    package, info = ROOT / "client/python", f"tokend-{VERSION}.dist-info"
    share = f"tokend-{VERSION}.data/data/share"  # pip installs it into share
    files = {str(path.relative_to(package)): path for path in package.glob("tokend/**/*")}
    files["tokend/_tokend.abi3.so"] = build / "wheel/_tokend.abi3.so"
    files["tokend/lib/libtokend.so.1"] = build / "wheel/libtokend.so.1"
    files["tokend/lib/pkgconfig/tokend.pc"] = build / "wheel/tokend.pc"
    files["tokend/include/tokend.h"] = ROOT / "client/lib/tokend.h"
    for page in (ROOT / "build/gcc/man").iterdir():
        files[f"{share}/man/man{page.suffix[1:]}/{page.name}"] = page
    for page in (ROOT / "build/gcc/completion").iterdir():  # bash looks there, zsh on $fpath
        where = "bash-completion/completions" if page.suffix else "zsh/site-functions"
        files[f"{share}/{where}/{page.stem}"] = page
    for path in (path for pattern in PAGES.split() for path in ROOT.glob(pattern)):
        files[f"{share}/doc/tokend/{path.relative_to(ROOT)}"] = path
    for program in ("tokend", "tokctl"):
        files[f"tokend-{VERSION}.data/scripts/{program}"] = build / "wheel" / program
    terms = {"LICENSE": ROOT / "LICENSE"}
    for name in (*LINKED.split(), "node-llhttp"):
        terms[f"{name}.copyright"] = Path("/usr/share/doc", name, "copyright")
    terms = {name: path for name, path in sorted(terms.items()) if path.exists()}
    files |= {f"{info}/licenses/{name}": path for name, path in terms.items()}
    made = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    made = {name: content for name, content in made.items() if "__pycache__" not in name}
    metadata = (package / "METADATA.in").read_text().replace("@VERSION@", VERSION)
    metadata += "".join(f"License-File: {name}\n" for name in terms)
    wheel = f"Wheel-Version: 1.0\nGenerator: tokend\nRoot-Is-Purelib: false\nTag: {tag}\n"
    texts = {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel, "tokend/lib/libtokend.so": LINK}
    return made | {name: text.encode() for name, text in texts.items()}


def pack(build, directory):
    """Makes the wheel in @directory, for this machine. Returns its name."""
    machine = "aarch64" if build.name == "arm64" else os.uname().machine
    tag, record = f"cp310-abi3-linux_{machine}", f"tokend-{VERSION}.dist-info/RECORD"
    files, lines = contents(build, tag), [f"{record},,\n"]
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = "".join(sorted(lines)).encode()
    wheel_name = f"tokend-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(Path(directory, wheel_name), "w") as wheel:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name)  # dated 1980, so that equal contents give equal wheels
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return wheel_name


# ---- for pip ----


def build_wheel(directory, config_settings=None, metadata_directory=None):
    """Compiles, and makes the wheel in @directory. Returns its name. The wheel is for this machine,
    so it needs no auditwheel.
    """
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


if __name__ == "__main__":
    pack(*(Path(name).resolve() for name in sys.argv[1:]))
