#!/usr/bin/env python3
"""wheel.py BUILD DIRECTORY: packs the wheel from the results of `make wheel-programs` in BUILD.
pip calls build_wheel() (PEP 517), which also compiles.

It contains the package, the extension, the daemon, tokctl and the man pages; the pages of the
documentation and the examples; and what C programs need (libtokend, its header and tokend.pc).
The programs contain their libraries, and the licence of each is added. So the wheel needs only
glibc, and auditwheel chooses the tag: the oldest glibc that has every symbol used.
"""

import ast
import base64
import configparser
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Programs and headers that the build needs, and their packages: of Debian, of Fedora and RHEL.
TOOLS = {"gcc": ("gcc", "gcc"), "make": ("make", "make")}
HEADERS = {
    "Python.h": ("python3-dev", "python3-devel"),
    "curl/curl.h": ("libcurl4-openssl-dev", "libcurl-devel"),
    "expat.h": ("libexpat1-dev", "expat-devel"),
    "jansson.h": ("libjansson-dev", "jansson-devel"),
    "liburing.h": ("liburing-dev", "liburing-devel"),
    "llhttp.h": ("libllhttp-dev", "llhttp-devel"),
    "msgpack/pack.h": ("libmsgpack-dev", "msgpack-devel"),
    "nettle/hmac.h": ("nettle-dev", "nettle-devel"),
    "stdio.h": ("libc6-dev", "glibc-devel"),
    "uv.h": ("libuv1-dev", "libuv-devel"),
    "xxhash.h": ("libxxhash-dev", "xxhash-devel"),
    "yaml.h": ("libyaml-dev", "libyaml-devel"),
    "zlib.h": ("zlib1g-dev", "zlib-devel"),
    "zstd.h": ("libzstd-dev", "libzstd-devel"),
}

# The Debian packages whose archives may be linked into the programs, and their licences.
LICENSES = {
    "libexpat1-dev": "MIT",
    "libjansson-dev": "MIT",
    "liburing-dev": "MIT",  # or LGPL
    "libuv1-dev": "MIT",
    "libyaml-dev": "MIT",
    "libzstd-dev": "BSD-3-Clause",  # or GPL
    "libllhttp-dev": "MIT",
    "nettle-dev": "LGPL-3.0-or-later",  # or GPL
    "node-llhttp": "MIT",
    "zlib1g-dev": "Zlib",
}
# The compiler's and glibc's parts, whose exceptions permit any licence.
OWN = re.compile(r"/gcc(-cross)?/|libc_nonshared")

# For the linker, as glibc's libc.so: a wheel cannot contain a symbolic link.
LINK = "INPUT(libtokend.so.1)\n"
# pkg-config replaces ${pcfiledir}, so the package works wherever pip installs it.
PLACES = {
    "PREFIX": "${pcfiledir}/../..",
    "LIBDIR": "${prefix}/lib",
    "RPATH": "-Wl,-rpath,${libdir} ",  # the loader does not look there otherwise
}


def output(*command, **keys):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **keys).stdout


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


def write_development(root):
    """Writes below @root what C programs are linked with, next to library and header."""
    text = (ROOT / "client/lib/tokend.pc.in").read_text()
    for name, value in {**PLACES, "VERSION": version()}.items():
        text = text.replace(f"@{name}@", value)
    (root / "tokend/lib/pkgconfig").mkdir()
    (root / "tokend/lib/pkgconfig/tokend.pc").write_text(text)
    (root / "tokend/lib/libtokend.so").write_text(LINK)


def linked(build):
    """Returns the Debian packages whose code the programs contain, as the linker's maps list it."""
    files, libraries = set(), f"/usr/lib/{output('gcc', '-print-multiarch').strip()}"
    for path in build.glob("wheel/*.map"):
        text = path.read_text()
        archives = {Path(name).resolve() for name in re.findall(r"^(\S+\.a)\(", text, re.M)}
        # For another architecture: the packages have the same names here.
        files |= {f"{libraries}/{path.name}" for path in archives if not OWN.search(str(path))}
        sources = re.findall(r"^LOAD \S*/llhttp/(\w+)\.o$", text, re.M)
        files |= {f"/usr/share/llhttp/{name}.c" for name in sources}
    owners = output("dpkg", "-S", *sorted(files)) if files else ""
    packages = {line.split(":")[0] for line in owners.splitlines()}
    unknown = packages - set(LICENSES)
    if unknown:
        sys.exit(f"wheel: the licence of {', '.join(unknown)} is not known; add it to LICENSES")
    return packages


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


def description():
    """The README without what leads to nowhere outside of the repository: links to its files."""
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n", "", text, flags=re.M)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def table(name):
    """A table of pyproject.toml, whose values are literals of Python: 3.10 has no tomllib."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "client/python/pyproject.toml")
    return {key: ast.literal_eval(value) for key, value in parser[name].items()}


def metadata(licenses, files):
    """METADATA: what pyproject.toml says, and what it calls dynamic."""
    project, extras = table("project"), table("project.optional-dependencies")
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", project["name"]),
        ("Version", version()),
        ("Summary", project["description"]),
        ("Keywords", ",".join(project["keywords"])),
        ("License-Expression", " AND ".join(sorted(licenses))),
        *(("License-File", name) for name in sorted(files)),
        ("Requires-Python", project["requires-python"]),
        *(("Classifier", name) for name in project["classifiers"]),
        ("Description-Content-Type", "text/markdown"),
    ]
    for extra, needed in extras.items():
        fields += [("Provides-Extra", extra)]
        fields += [("Requires-Dist", f'{package}; extra == "{extra}"') for package in needed]
    if home := os.environ.get("HOMEPAGE"):  # the one who builds says where the project is
        fields.append(("Project-URL", f"Homepage, {home}"))
    return "".join(f"{name}: {value}\n" for name, value in fields) + f"\n{description()}"


def stage(build, root):
    """Copies everything below @root."""
    for name, path in contents(build).items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    write_development(root)
    info = root / f"tokend-{version()}.dist-info"
    terms = info / "licenses"
    terms.mkdir(parents=True)
    packages = linked(build)
    shutil.copy(ROOT / "LICENSE", terms / "LICENSE")
    for package in packages:
        shutil.copy(Path("/usr/share/doc") / package / "copyright", terms / f"{package}.copyright")
    licenses = {"Apache-2.0", *(LICENSES[name] for name in packages)}
    files = [path.name for path in terms.iterdir()]
    (info / "METADATA").write_text(metadata(licenses, files))
    (info / "WHEEL").write_text(
        f"Wheel-Version: 1.0\nGenerator: tokend\nRoot-Is-Purelib: false\nTag: {tag(build)}\n"
    )


def tag(build):
    machine = "aarch64" if build.name == "arm64" else os.uname().machine
    return f"cp310-abi3-linux_{machine}"


def pack(build, directory):
    """Makes the wheel in @directory, for this machine. Returns its name."""
    name = f"tokend-{version()}-{tag(build)}.whl"
    with tempfile.TemporaryDirectory() as root:
        stage(build, Path(root))
        zip_up(Path(root), Path(directory, name))
    return name


# ---- for pip ----


def lacking():
    """The names in TOOLS and HEADERS that this machine lacks."""
    tools = [name for name in TOOLS if not shutil.which(name)]
    if "gcc" in tools:
        return [*tools, *HEADERS]
    flags = shlex.split(os.environ.get("CFLAGS", ""))
    flags += [f"-I{sysconfig.get_path('include')}", "-I/usr/share/include/llhttp"]
    source = "".join(f"#if __has_include(<{name}>)\n{name}\n#endif\n" for name in HEADERS)
    found = output("gcc", *flags, "-E", "-P", "-xc", "-", input=source).split()
    return tools + [name for name in HEADERS if name not in found]


def require():
    """Exits with one line if this machine cannot build."""
    if sys.version_info < (3, 10):  # noqa: UP036  pip looks only at the result
        sys.exit(f"tokend: Python 3.{sys.version_info[1]} is too old; 3.10 or later is required")
    if not (ROOT / "Makefile").exists():
        sys.exit(f"tokend: no Makefile in {ROOT}: build in a git clone, with pip 21.3 or later")
    names = lacking()
    if names:
        debian, rpm = (" ".join({**TOOLS, **HEADERS}[name][i] for name in names) for i in (0, 1))
        if platform.freedesktop_os_release().get("VERSION_ID") == "12":
            debian = debian.replace("libllhttp-dev", "node-llhttp")  # as tests/deps.sh does
        sys.exit(
            f"tokend: the build needs {', '.join(names)}; "
            f"install {debian} (Debian, Ubuntu) or {rpm} (Fedora, RHEL)"
        )


def build_wheel(directory, config_settings=None, metadata_directory=None):
    """Compiles, and makes the wheel in @directory. Returns its name. The wheel is for this machine,
    so it needs no auditwheel.
    """
    require()
    command = ["make", "-C", ROOT, "VARIANT=gcc", "wheel-programs"]
    command.append(f"include_python={sysconfig.get_path('include')}")
    if not shutil.which("dpkg"):  # RPM distributions have no archives of most libraries
        command.append("archives=$(LIBS)")
    flags = os.environ.get("CFLAGS", "") + " -Wno-error"  # a newer compiler warns of more
    if subprocess.run(command, env={**os.environ, "CFLAGS": flags}, check=False).returncode:
        sys.exit(f"tokend: make failed in {ROOT}; the lines above say why")
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
        done = subprocess.run(
            [Path(sys.executable).parent / "auditwheel", "repair", *options, plain],
            env={**os.environ, "SOURCE_DATE_EPOCH": "315532800"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"wheel: auditwheel: {done.stderr or done.stdout}")
        (wheel,) = repaired.iterdir()
        for older in directory.glob("tokend-*.whl"):
            older.unlink()
        print(shutil.copy(wheel, directory / wheel.name))


if __name__ == "__main__":
    main()
