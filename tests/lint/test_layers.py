"""Includes and calls follow ARCHITECTURE.md's table of rooms, and have no circles.

Calls are those between object files, as `nm` shows them. nm shows neither callbacks nor inline
functions, so includes are checked too.
"""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each room, a folder or a file, and the rooms that it may use.
ROOMS = {
    "proto": [],
    "daemon/config": ["proto"],
    "daemon/store": ["daemon/config", "proto"],
    "daemon/shard": ["daemon/store", "daemon/config", "proto"],
    "daemon/catalog": ["daemon/shard", "daemon/store", "daemon/config", "proto"],
    "daemon/engine": ["proto"],
    "daemon/io": ["proto"],
    "daemon/reader": [
        "daemon/io",
        "daemon/catalog",
        "daemon/shard",
        "daemon/store",
        "daemon/config",
        "proto",
    ],
    "daemon/control": [
        "daemon/control/cgroup.h",
        "daemon/reader",
        "daemon/io",
        "daemon/engine",
        "daemon/catalog",
        "daemon/shard",
        "daemon/store",
        "daemon/config",
        "proto",
    ],
    "daemon/main.c": [
        "daemon/control",
        "daemon/reader",
        "daemon/io",
        "daemon/catalog",
        "daemon/store",
        "daemon/config",
        "proto",
    ],
    "client/lib": ["client/lib/tokend.h", "client/lib/connect.h", "client/lib/places.h", "proto"],
    "client/lib/tokend.h": [],
    "client/lib/connect.h": ["proto"],
    "client/lib/places.h": ["proto"],
    "client/ctl/common": ["proto"],
    "client/ctl/offline": [
        "client/ctl/common",
        "daemon/catalog",
        "daemon/shard",
        "daemon/store",
        "daemon/config",
        "proto",
    ],
    "client/ctl/online": [
        "client/ctl/common",
        "daemon/config",
        "client/lib/connect.h",
        "client/lib/places.h",
        "client/lib/tokend.h",
        "proto",
    ],
    "client/ctl/doctor": [
        "client/ctl/common",
        "client/ctl/online",
        "client/lib/connect.h",
        "daemon/catalog",
        "daemon/config",
        "daemon/control/cgroup.h",
        "daemon/shard",
        "daemon/store",
        "proto",
    ],
    "daemon/control/cgroup.h": [],
    "client/ctl/man": ["client/ctl/common", "daemon/config", "proto"],
    "client/ctl/main.c": [
        "client/ctl/common",
        "client/ctl/doctor",
        "client/ctl/man",
        "client/ctl/offline",
        "client/ctl/online",
        "proto",
    ],
    "client/python/src": ["client/lib/tokend.h"],
    "client/example": ["client/lib/tokend.h"],
}

# examples that are built only where CUDA or MPI is
NEED_MORE = ("client/example/gpu", "client/example/trainers")


def room(path):
    """The innermost room that contains @path."""
    return next((r for r in (path, *map(str, Path(path).parents)) if r in ROOMS), None)


def may_use(path, used, symbols=()):
    """May @path use @used? Includes have no @symbols. A room that may use a header may call what
    its .c defines. tokend.h stands for the whole library.
    """
    inside, other = room(path), room(used)
    allowed = ROOMS[inside]
    if other == inside or other in allowed or used.replace(".c", ".h") in allowed:
        return True
    return (
        "client/lib/tokend.h" in allowed
        and other == "client/lib"
        and symbols
        and all(s.startswith("tokend_") for s in symbols)
    )


def circles(edges):
    """The strongly connected components of more than one node."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            found.append(stack[stack.index(node) :])
            del stack[stack.index(node) :]

    for node in list(edges):
        if node not in index:
            visit(node)
    return [sorted(circle) for circle in found if len(circle) > 1]


def test_circles_are_found():
    assert circles({"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]}) == [["b", "c", "d"]]
    assert circles({"a": ["b", "c"], "b": ["c"]}) == []


def sources():
    found = []
    for inside in ROOMS:
        at = ROOT / inside
        found += [at] if at.is_file() else [p for p in at.rglob("*.[ch]")]
    return sorted({str(path.relative_to(ROOT)) for path in found})


def includes():
    edges = defaultdict(dict)
    for path in sources():
        for name in re.findall(r'^#include "(.*)"', (ROOT / path).read_text(), re.M):
            near = f"{Path(path).parent}/{name}"
            used = name
            if "/" not in name:  # examples include what is next to them, or the installed header
                used = near if (ROOT / near).is_file() else f"client/lib/{name}"
            assert (ROOT / used).is_file(), (
                f"{path} includes {name}: write it from the top of the tree"
            )
            edges[path][used] = ()
    assert len(edges) > 150
    return edges


def calls():
    """The symbols that a file takes from another, by (file, file)."""
    objects = {
        path: ROOT / "build/gcc" / path.replace(".c", ".o")
        for path in sources()
        if path.endswith(".c")
    }
    objects = {
        path: file
        for path, file in objects.items()
        if file.exists() or not path.startswith(NEED_MORE)
    }
    home, wanted = {}, {}
    for path, file in objects.items():
        wanted[path] = set()
        for line in subprocess.run(
            ["nm", file], check=True, capture_output=True, text=True
        ).stdout.splitlines():
            kind, symbol = line.split()[-2:]
            if kind == "U":
                wanted[path].add(symbol)
            elif kind.isupper() and symbol != "main":
                assert symbol not in home, f"{symbol} is in {path} and {home[symbol]}"
                home[symbol] = path
    edges = defaultdict(lambda: defaultdict(set))
    for path, symbols in wanted.items():
        for symbol in symbols & set(home):
            edges[path][home[symbol]].add(symbol)
    assert len(edges) > 100
    return edges


def check(kind, edges):
    wrong = {
        f"{a} → {b}": sorted(edges[a][b])
        for a in edges
        for b in edges[a]
        if not may_use(a, b, edges[a][b])
    }
    assert not wrong, f"{kind} that the table of rooms does not allow: {wrong}"
    assert circles(edges) == [], f"circles of {kind}"
    between = defaultdict(set)
    for a in edges:
        between[room(a)] |= {room(b) for b in edges[a]} - {room(a)}
    assert circles(between) == [], f"circles of {kind} between rooms"


@pytest.mark.parametrize("path", sorted(ROOMS))
def test_room_exists(path):
    assert (ROOT / path).exists()


def test_includes_follow_the_rooms():
    check("includes", includes())


def test_calls_follow_the_rooms():
    check("calls", calls())


def test_architecture_names_existing_files():
    page = (ROOT / "daemon/ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `(\S+?)/?` \|", page, re.M)
    for path in ROOMS:
        named = any(path == row or path.startswith(row + "/") for row in rows)
        assert named or path in ("daemon/main.c", "client/example"), f"{path} is in no row"
    for name in re.findall(r"`([\w./]+\.(?:c|h|py|md|sh|yaml))`", page):
        there = list(ROOT.glob(name)) or [
            *ROOT.glob(f"daemon/**/{name}"),
            *ROOT.glob(f"client/**/{name}"),
        ]
        assert there, f"{name} is not there"
