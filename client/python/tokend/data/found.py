"""What directories and files contain: shards of tokens, by `tokctl inspect`, or text."""

import collections
import dataclasses
import fnmatch
import json
import os
import re
import subprocess
import sys

from .. import documents
from .._tokend import Error, program

ALL = "*"
SCANNED_BYTES = 1 << 30  # of shards, for the largest token: a second or two
COMPARED_BYTES = 4096  # at three places of two files
FILES = 500  # of a command
ALONE = 16  # shards that no pattern matches may each be a dataset
SHARD_ENDINGS = re.compile(r"\.(bin|npy|ds|mds|arrow)(\.zst|\.zstd)?$")
TEXT_ENDINGS = re.compile(
    r"\.(txt|text|jsonl|md|rst|tex|org|html?|py|pyi|c|h|cc|cpp|cxx|hh|hpp|cu|cuh|rs|go|java|kt"
    r"|scala|swift|js|jsx|ts|tsx|rb|php|pl|lua|sh|sql|jl|r|hs|ml|ex|erl|clj|lisp|el|f90|zig|nim)"
    r"(\.gz|\.zst)?$|\.parquet$",
    re.IGNORECASE,
)
WILD = set("*?[\\")
# words of names
HELD_OUT = {"val", "valid", "validation", "test", "dev", "eval", "held", "heldout"}
SIDES = {"idx", "index", "indexes", "indices", "mask", "masks", "offset", "offsets", "lengths",
    "lens", "labels", "bounds", "boundaries"}  # fmt: skip
COPIES = {"copy", "backup", "bak", "tmp", "partial", "incomplete"}


@dataclasses.dataclass
class Dataset:
    """Shards that one `path:` describes."""

    name: str
    path: str
    tokens: int
    shards: int
    format: str
    dtype: str
    held_out: bool  # by its name: for validation
    sample_tokens: int  # 0: the shards have no samples
    files: list
    column: str = ""  # "": the format has none
    notes: list = dataclasses.field(default_factory=list)  # remarks about files


@dataclasses.dataclass
class Found:
    """Of one path. Either datasets or texts are empty."""

    path: str
    datasets: list
    texts: list  # documents.Source
    left_out: dict  # path of another file → the reason
    held_out: bool = False  # all texts are for validation


def progress(text=""):
    """Replaces the line of progress, on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# ---- tokctl inspect ----


def _inspect(directory, paths, *options):
    """Yields the report on each file. It is one JSON object."""
    command = [program("tokctl"), "inspect", "--json", *options, "--", *paths]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE) as tokctl:
        for number, line in enumerate(tokctl.stdout, 1):
            if number % 100 == 0:
                progress(f"{directory}: {number} files")
            yield json.loads(line)
    if tokctl.returncode not in (0, 1):
        raise Error(f"tokctl inspect: exit status {tokctl.returncode}; run it again")


def _is_doubtful(report):
    return report["format"] and report["problems"]


def _again(root, reports):
    """Inspects files again, as u16 and as u32, without those that were left out: another file's
    format may be a shard's problem. Returns the better reports.
    """
    better = []
    for first in range(0, len(reports), FILES):
        part = reports[first : first + FILES]
        paths = [report["path"] for report in part]
        narrow = {r["path"]: r for r in _inspect(root, paths)}
        wide = {r["path"]: r for r in _inspect(root, paths, "--input-dtype", "u32")}
        for path in paths:
            other = wide.get(path, narrow[path])
            fits = _is_doubtful(narrow[path]) and not other["problems"] and not other["notes"]
            better.append(other if fits else narrow[path])
    return better


def _reports(root, names):
    """Returns the reports on a directory, or on files in it."""
    reports = []
    for report in _inspect(root, names or ["."]):
        report["path"] = os.path.normpath(report["path"])
        if report["format"] is None and os.path.isdir(os.path.join(root, report["path"])):
            _refuse_problems(os.path.normpath(os.path.join(root, report["path"])), report)
        reports.append(report)
    return reports


def largest_token(datasets):
    """Returns the largest token of up to SCANNED_BYTES of shards, and whether these are all."""
    largest, left, whole = 0, SCANNED_BYTES, True
    for dataset in datasets:
        chosen = []
        for path in dataset.files:
            if left <= 0:
                whole = False
                break
            chosen.append(path)
            left -= os.stat(path).st_size
        for first in range(0, len(chosen), FILES):
            part = chosen[first : first + FILES]
            for report in _inspect(".", part, "--deep", "--input-dtype", dataset.dtype):
                _refuse_problems(report["path"], report)
                largest = max(largest, report.get("max_token", 0))
    return largest, whole


def _refuse_problems(path, report):
    if report["problems"]:
        raise Error(f"{path}: {report['problems'][0]}")


# ---- what is left out ----


def _words(path):
    return set(re.split("[^a-z]+", path.lower()))


def _reason(report):
    """What inspect says, without its advice."""
    if TEXT_ENDINGS.search(report["path"]):
        return "is text next to shards"
    if not SHARD_ENDINGS.search(report["path"]):
        return "its name ends neither as that of a shard nor as that of text"
    problem = report["problems"][0]
    return problem.rpartition("; ")[0] or problem


def _by_name(path):
    """The reason to leave a shard out, or ""."""
    words = _words(path)
    if words & SIDES:
        return f"its name ({min(words & SIDES)}) is not a shard's"
    copy = words & COPIES or re.search(r"\(\d+\)", path)
    return "its name is that of a copy" if copy else ""


def _copies(root, paths):
    """Returns {path: the reason} of files with the bytes of another one; the shortest name stays.

    Three places are compared: shards of one format may begin with equal tables.
    """
    firsts, copies = {}, {}
    for path in sorted(paths, key=lambda path: (len(path), path)):
        with open(os.path.join(root, path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            end = max(size - COMPARED_BYTES, 0)
            places = (0, end // 2, end)
            looks = (size, *(os.pread(file.fileno(), COMPARED_BYTES, at) for at in places))
        if firsts.setdefault(looks, path) != path:
            copies[path] = f"is a copy of {firsts[looks]}"
    return copies


def _divided(root, reports):
    """Returns the reports on shards, and {path: the reason} of all other files."""
    left_out = {r["path"]: _reason(r) for r in reports if not r["format"]}
    left_out |= {r["path"]: why for r in reports if r["format"] and (why := _by_name(r["path"]))}
    left_out |= _copies(root, [r["path"] for r in reports if r["path"] not in left_out])
    kept = [report for report in reports if report["path"] not in left_out]
    if any(map(_is_doubtful, kept)):
        kept = _again(root, kept)
    good = [report for report in kept if not report["problems"]]
    if good:
        left_out |= {r["path"]: _reason(r) for r in kept if r["problems"]}
    return good or kept, left_out


# ---- text ----


def _sources(root, left_out):
    """Takes the texts, by their endings, from @left_out. Returns documents.Source."""
    sources = []
    for path in [path for path in left_out if TEXT_ENDINGS.search(path)]:
        whole = os.path.normpath(os.path.join(root, path))
        if os.stat(whole).st_size:
            sources.append(documents.source_of(whole, text=True))
            del left_out[path]
        else:
            left_out[path] = "is empty"
    return sources


# ---- datasets ----


def is_held_out(path):
    return bool(HELD_OUT & _words(path))


def _unit(path):
    """The part of a directory that a file belongs to: a subdirectory, or all files of an ending."""
    top, nested, _ = path.partition("/")
    ending = SHARD_ENDINGS.search(top)
    suffix = ending[0] if ending else os.path.splitext(top)[1]
    return top if nested or not suffix or set(suffix) & WILD else ALL + suffix


def _pattern(unit, chosen, others):
    """A path that matches the files @chosen of a unit, and none of @others; or None."""
    if not others:
        return unit
    parts = [path.split("/") for path in chosen]
    if len(set(map(len, parts))) > 1:
        return None
    for wildcard in (_wildcard, _places):
        pattern = "/".join(map(wildcard, map(set, zip(*parts, strict=True))))
        if all(_matches(path, pattern) for path in chosen) and not any(
            _matches(path, pattern) for path in others
        ):
            return pattern
    return None


def _matches(path, pattern):
    """Does a dataset's pattern match? A * does not match a slash."""
    parts, patterns = path.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def _wildcard(names):
    if len(names) == 1:
        return next(iter(names))
    prefix = os.path.commonprefix(list(names))
    suffix = os.path.commonprefix([name[len(prefix) :][::-1] for name in names])[::-1]
    ending = os.path.splitext(suffix)[1] or suffix
    return f"{re.sub('[0-9]+$', '', prefix)}*{ending}"


def _places(names):
    """A ? for each place where names of one length differ."""
    return "".join(c[0] if len(set(c)) == 1 else "?" for c in zip(*names, strict=False))


def _named(name, chosen, pattern, group):
    return Dataset(
        name=name,
        path=pattern,
        tokens=sum(report["tokens"] for report in group),
        shards=len(group),
        format=group[0]["format"],
        dtype=group[0]["dtype"],
        held_out=is_held_out(chosen[0]),
        sample_tokens=max(report.get("sample_tokens", 0) for report in group),
        files=chosen,
        column=group[0].get("column") or "",
        notes=[f"{report['path']}: {note}" for report in group for note in report["notes"]],
    )


def _datasets(root, unit, reports, others):
    """@others: files of the directory that are not shards of it."""
    groups = collections.defaultdict(list)
    for report in reports:
        _refuse_problems(os.path.join(root, report["path"]), report)
        groups[report["format"], report["dtype"], is_held_out(report["path"])].append(report)
    for (_, _, held_out), group in groups.items():
        chosen = [report["path"] for report in group]
        left = [r["path"] for r in reports if r not in group]
        left += [name for name in others if _unit(name) == unit]
        name = unit if "/" in chosen[0] else os.path.basename(os.path.realpath(root))
        pattern = _pattern(unit, chosen, left)
        if pattern:
            yield _named(f"{name}-valid" if held_out and len(groups) > 1 else name,
                chosen, pattern, group)  # fmt: skip
        elif len(group) <= ALONE:
            for report in group:
                yield _named(os.path.splitext(report["path"])[0], [report["path"]], report["path"],
                    [report])  # fmt: skip
        else:
            raise Error(
                f"{unit}: no pattern tells {chosen[0]} and {len(chosen) - 1} more shards from the "
                f"other files, like {left[0]}; move these to a directory of their own"
            )


def look(root, names=None):
    """Looks at a directory, or at files in it. Returns Found."""
    shards, left_out = _divided(root, _reports(root, names))
    datasets, texts = [], []
    if not shards or shards[0]["problems"]:  # where there are shards, these win
        texts = _sources(root, left_out)
    if texts:
        left_out |= {report["path"]: _reason(report) for report in shards}
        shards = []
    unasked = [n for n in os.listdir(root) if n[0] != "." and n not in names] if names else []
    units = collections.defaultdict(list)
    for report in shards:
        units[_unit(report["path"])].append(report)
    for unit, part in sorted(units.items()):
        datasets += _datasets(root, unit, part, sorted([*left_out, *unasked]))
    here = os.path.samefile(root, ".")  # files that init writes will be there too
    whole = [unit for unit in units if unit[0] == ALL] == [dataset.path for dataset in datasets]
    if whole and len(datasets) == 1 and not (here or left_out or unasked):
        datasets[0].path = ""
    for dataset in datasets:
        dataset.path = os.path.normpath(os.path.join(root, dataset.path))
        dataset.files = [os.path.join(root, path) for path in dataset.files]
    return Found(root, datasets, texts, {
        os.path.normpath(os.path.join(root, path)): why for path, why in left_out.items()
    })  # fmt: skip
