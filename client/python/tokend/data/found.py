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
SNIFFED_BYTES = 4096
SCANNED_BYTES = 1 << 30  # of shards, for the largest token: a second or two
SHARD_ENDINGS = re.compile(r"\.(bin|npy|ds|mds|arrow)(\.zst|\.zstd)?$")
WILD = set("*?[\\")
HELD_OUT = {"val", "valid", "validation", "test", "dev", "eval", "held", "heldout"}


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


@dataclasses.dataclass
class Found:
    """Of one path. Either datasets or texts are empty."""

    path: str
    datasets: list
    texts: list  # documents.Source
    ignored: list  # paths of other files
    problem: str = ""  # of a file that may be a shard, if nothing else was found


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


def _unit(path):
    """The part of a directory that a file belongs to: a subdirectory, or all files of an ending."""
    top, nested, _ = path.partition("/")
    ending = SHARD_ENDINGS.search(top)
    suffix = ending[0] if ending else os.path.splitext(top)[1]
    return top if nested or not suffix or set(suffix) & WILD else ALL + suffix


def _is_doubtful(report):
    return report["format"] and report["problems"]


def _again(root, paths, reports):
    """Inspects a part of a directory again, as u16 and as u32. Returns the better reports.

    A file of the whole directory may have a problem only because other files have other formats.
    """
    narrow = {report["path"]: report for report in _inspect(root, paths)}
    wide = {r["path"]: r for r in _inspect(root, paths, "--input-dtype", "u32")}
    better = []
    for report in reports:
        report = narrow.get(report["path"], report)
        other = wide.get(report["path"], report)
        fits = _is_doubtful(report) and not other["problems"] and not other["notes"]
        better.append(other if fits else report)
    return better


def _parts(root, names):
    """Returns the reports on a directory, or on files in it, by unit."""
    parts = collections.defaultdict(list)
    for report in _inspect(root, names or ["."]):
        report["path"] = os.path.normpath(report["path"])
        if report["format"] is None and os.path.isdir(os.path.join(root, report["path"])):
            _refuse_problems(os.path.normpath(os.path.join(root, report["path"])), report)
        parts[_unit(report["path"])].append(report)
    for unit, reports in parts.items():
        if any(map(_is_doubtful, reports)):
            parts[unit] = _again(root, [r["path"] for r in reports] if names else [unit], reports)
    return parts


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
        for first in range(0, len(chosen), 500):
            part = chosen[first : first + 500]
            for report in _inspect(".", part, "--deep", "--input-dtype", dataset.dtype):
                _refuse_problems(report["path"], report)
                largest = max(largest, report.get("max_token", 0))
    return largest, whole


def _refuse_problems(path, report):
    if report["problems"]:
        raise Error(f"{path}: {report['problems'][0]}")


# ---- text ----


def _source(path):
    """The file as a documents.Source, or None if it is not text."""
    if os.stat(path).st_size == 0:
        return None
    source = documents.source_of(path, text=True)
    fits = source.kind != "text" or documents.is_text(source, SNIFFED_BYTES)
    return source if fits else None


def _sources(paths):
    found = {path: _source(path) for path in paths if not SHARD_ENDINGS.search(path)}
    return [source for source in found.values() if source]


# ---- datasets ----


def _is_held_out(path):
    return bool(HELD_OUT & set(re.split("[^a-z]+", path.lower())))


def _pattern(unit, chosen, others):
    """A path that matches the files @chosen of a unit, and none of @others."""
    if not others:
        return unit
    parts = [path.split("/") for path in chosen]
    if len(set(map(len, parts))) == 1:
        pattern = "/".join(map(_wildcard, map(set, zip(*parts, strict=True))))
        if not any(_matches(path, pattern) for path in others):
            return pattern
    raise Error(
        f"{unit}: no pattern tells {chosen[0]} and {len(chosen) - 1} more shards from the other "
        f"files, like {others[0]}; move these to a directory of their own"
    )


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


def _datasets(root, unit, reports, others):
    """@others: files of the directory that were not asked for."""
    groups = collections.defaultdict(list)
    for report in filter(lambda r: r["format"], reports):
        _refuse_problems(os.path.join(root, report["path"]), report)
        groups[report["format"], report["dtype"], _is_held_out(report["path"])].append(report)
    for report in reports if groups else ():
        if SHARD_ENDINGS.search(report["path"]) and not report["format"]:
            _refuse_problems(os.path.join(root, report["path"]), report)
    for (kind, dtype, held_out), group in groups.items():
        chosen = [report["path"] for report in group]
        left = [r["path"] for r in reports if r not in group]
        left += [name for name in others if _unit(name) == unit]
        name = unit if "/" in chosen[0] else os.path.basename(os.path.realpath(root))
        yield Dataset(
            name=f"{name}-valid" if held_out and len(groups) > 1 else name,
            path=os.path.normpath(os.path.join(root, _pattern(unit, chosen, left))),
            tokens=sum(report["tokens"] for report in group),
            shards=len(group),
            format=kind,
            dtype=dtype,
            held_out=held_out,
            sample_tokens=max(report.get("sample_tokens", 0) for report in group),
            files=[os.path.join(root, path) for path in chosen],
        )


def look(root, names=None):
    """Looks at a directory, or at files in it. Returns Found."""
    parts = _parts(root, names)
    reports = [report for part in parts.values() for report in part]
    others = [os.path.join(root, r["path"]) for r in reports if not r["format"]]
    texts = _sources(others)
    size = sum(os.stat(os.path.join(root, r["path"])).st_size for r in reports if r["format"])
    if size <= sum(source.size for source in texts):
        kept = {source.path for source in texts}
        ignored = [os.path.join(root, r["path"]) for r in reports]
        maybe = [r for r in reports if SHARD_ENDINGS.search(r["path"]) and r["problems"]]
        problem = f"{maybe[0]['path']}: {maybe[0]['problems'][0]}" if maybe else ""
        return Found(root, [], texts, [path for path in ignored if path not in kept], problem)
    unasked = set(os.listdir(root)) - set(names) if names else ()
    datasets = []
    for unit, part in sorted(parts.items()):
        datasets += _datasets(root, unit, part, sorted(n for n in unasked if n[0] != "."))
    whole = [os.path.normpath(os.path.join(root, unit)) for unit in parts if unit[0] == ALL]
    here = os.path.samefile(root, ".")  # files that init writes will be there too
    if (
        len(parts) == 1
        and not unasked
        and not here
        and [dataset.path for dataset in datasets] == whole
    ):
        datasets[0].path = os.path.normpath(root)
    return Found(root, datasets, [], others)
