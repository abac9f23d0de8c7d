"""Includes and calls follow ARCHITECTURE.md's table of rooms, which has no circles.

Calls are those between object files, as `nm` shows them. nm shows neither callbacks nor inline
functions, so includes are checked too.
"""

import graphlib
import re
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Each room, a folder or a file, and the rooms that it may use.
FILES = "daemon/catalog daemon/shard daemon/store daemon/config proto"
ROOMS = {
    "proto": "",
    "proto/words.h": "",
    "daemon/config": "proto",
    "daemon/store": "daemon/config proto",
    "daemon/shard": "daemon/store daemon/config proto proto/words.h",
    "daemon/catalog": "daemon/shard daemon/store daemon/config proto proto/words.h",
    "daemon/engine": "proto",
    "daemon/io": "proto",
    "daemon/reader": f"daemon/io {FILES}",
    "daemon/control": f"daemon/reader daemon/io daemon/engine {FILES}",
    "daemon/tokend.c": f"daemon/control daemon/reader daemon/io {FILES}",
    "client/lib": "client/lib/tokend.h client/lib/link.h proto",
    "client/lib/tokend.h": "",
    "client/lib/link.h": "proto",
    "client/ctl/common": "proto",
    "client/ctl/offline": f"client/ctl/common {FILES}",
    "client/ctl/online": "client/ctl/common daemon/config client/lib/link.h "
    "client/lib/tokend.h proto",
    "client/ctl/doctor": "client/ctl/common client/ctl/offline client/ctl/online "
    f"client/lib/link.h {FILES}",
    "client/ctl/web": "client/ctl/common client/ctl/online proto",
    "client/ctl/man": "client/ctl/common daemon/config proto",
    "client/ctl/tokctl.c": "client/ctl/common client/ctl/doctor client/ctl/man client/ctl/offline "
    "client/ctl/online client/ctl/web proto",
    "client/python/src": "client/lib/tokend.h proto/words.h",
    "client/example": "client/lib/tokend.h",
}
ROOMS = {room: used.split() for room, used in ROOMS.items()}
# examples that are built only where CUDA or MPI is
NEED_MORE = ("client/example/trainers",)


def room(path):
    """The innermost room that contains @path."""
    return next((r for r in (path, *map(str, Path(path).parents)) if r in ROOMS), None)


def may_use(path, used, symbols):
    """May @path use @used? Includes have no @symbols. A room that may use a header may call what
    its .c defines. tokend.h stands for the whole library.
    """
    inside, other = room(path), room(used)
    allowed = ROOMS[inside]
    if other == inside or other in allowed or used.replace(".c", ".h") in allowed:
        return True
    of_library = symbols and all(symbol.startswith("tokend_") for symbol in symbols)
    return "client/lib/tokend.h" in allowed and other == "client/lib" and of_library


def sources():
    found = []
    for inside in ROOMS:
        at = ROOT / inside
        assert at.exists(), inside
        found += [at] if at.is_file() else at.rglob("*.[ch]")
    return sorted({str(path.relative_to(ROOT)) for path in found})


def includes():
    edges = defaultdict(dict)
    for path in sources():
        for name in re.findall(r'^#include "(.*)"', (ROOT / path).read_text(), re.M):
            near, used = f"{Path(path).parent}/{name}", name
            if "/" not in name:  # examples include what is next to them, or the installed header
                used = near if (ROOT / near).is_file() else f"client/lib/{name}"
                if path.startswith(NEED_MORE) and not (ROOT / used).is_file():
                    continue  # of the clone that the example is copied into
            assert (ROOT / used).is_file(), f"{path} includes {name}: write it from the top"
            edges[path][used] = ()
    assert len(edges) > 150
    return edges


def calls():
    """The symbols that a file takes from another, by (file, file)."""
    home, wanted = {}, defaultdict(set)
    for path in (path for path in sources() if path.endswith(".c")):
        file = ROOT / "build/gcc" / path.replace(".c", ".o")
        if not file.exists() and path.startswith(NEED_MORE):
            continue
        symbols = subprocess.run(["nm", file], check=True, capture_output=True, text=True).stdout
        for line in symbols.splitlines():
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


def check(edges):
    wrong = [(a, b, used) for a in edges for b, used in edges[a].items() if not may_use(a, b, used)]
    assert not wrong, "the table of rooms does not allow this"
    between = defaultdict(set)
    for a in edges:
        between[room(a)] |= {room(b) for b in edges[a]} - {room(a)}
    graphlib.TopologicalSorter(between).prepare()  # no circle of rooms


def test_includes_follow_the_rooms():
    check(includes())


def test_calls_follow_the_rooms():
    check(calls())


def test_architecture_names_existing_files():
    page = (ROOT / "daemon/ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `(\S+?)/?` \|", page, re.M)
    for path in ROOMS:
        named = any(path == row or path.startswith(row + "/") for row in rows)
        assert named or path in ("daemon/tokend.c", "client/example"), f"{path} is in no row"
    for name in re.findall(r"`([\w./]+\.(?:c|h|py|md|sh|yaml))`", page):
        places = (name, f"daemon/**/{name}", f"client/**/{name}")
        assert any(any(ROOT.glob(place)) for place in places), f"{name} is not there"


def test_security_names_existing_tests():
    page = (ROOT / "daemon/SECURITY.md").read_text()
    for name in re.findall(r"`(test_\w+|\w+\.sh)`", page):
        assert any((ROOT / "tests").glob(f"*/{name.removesuffix('.sh')}.*")), f"no {name}"
