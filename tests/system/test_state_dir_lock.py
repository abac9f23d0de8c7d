"""STATE_DIR/.lock: only its owner, which is state_dir's, can open it. Saves work on file systems
that have no locks. A daemon that could not open it removes left-over files later.
"""

import os
import stat

import pytest

from lib import Client, Daemon, Refused, datasets, has
from lib.preload import Preload

SERVICE = 1001

NO_LOCKS = r"""
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static int without(const char *name, int fd, int command, void *argument)
{
	int (*next)(int, int, ...) = dlsym(RTLD_NEXT, name);

	if (command != F_SETLK && command != F_GETLK)
		return next(fd, command, argument);
	words[INJECTED]++;
	errno = ENOLCK;
	return -1;
}

#define WITHOUT(name)                                                    \
	int name(int fd, int command, ...)                               \
	{                                                                \
		va_list list;                                            \
		va_start(list, command);                                 \
		void *argument = va_arg(list, void *);                   \
		va_end(list);                                            \
		return without(#name, fd, command, argument);            \
	}

WITHOUT(fcntl)
WITHOUT(fcntl64)
"""


def config_of(place, name):
    place.shard("web/a.bin", 60_000)
    streams = {"train": {"seed": 5, "seq_len": 64, "datasets": datasets("web")}}
    return place.config(
        f"{name}.yaml",
        streams=streams,
        socket=place.file(f"{name}.sock"),
        state_dir=place.file(f"{name}/x")[:-2],
    )


def save(daemon, count=1):
    """Saves a snapshot @count times. Returns its path, or the error."""
    client = Client(daemon.socket).attach(run="job")
    try:
        for _ in range(count):
            answer = client.ask(op="checkpoint", tag="a", cursor=client.feed["cursor"])
        return answer["path"]
    except Refused as e:
        return str(e)
    finally:
        client.close()


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_lock_is_private(place):
    daemon = Daemon(place, config_of(place, "private"))
    lock = place.file("private/.lock")
    assert os.path.exists(save(daemon)), "a save succeeds"
    assert oct(mode(lock)) == oct(0o600), "  no other user may open, and so lock, the lock file"
    daemon.stop()
    os.chmod(lock, 0o644)
    daemon.start()
    assert os.path.exists(save(daemon)), "a save succeeds with a lock file of an earlier version"
    assert oct(mode(lock)) == oct(0o600), "  whose mode is changed"
    assert daemon.stop() == 0, "  exit 0"


def test_lock_belongs_to_the_owner_of_state_dir(place):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    config = config_of(place, "owned")
    lock = place.file("owned/.lock")
    os.chown(os.path.dirname(lock), SERVICE, SERVICE)
    daemon = Daemon(place, config)
    assert os.path.exists(save(daemon)), "a daemon of root saves in a service's state_dir"
    assert (os.stat(lock).st_uid, oct(mode(lock))) == (SERVICE, oct(0o600)), (
        "  the lock file belongs to the service"
    )
    assert daemon.stop() == 0, "  exit 0"
    os.unlink(lock)
    os.mkdir(lock)
    daemon.start()
    assert has(save(daemon), lock), "the error names a lock file that cannot be opened"
    daemon.stop()


def test_saves_without_locks(place):
    locks = Preload(place, NO_LOCKS, ["injected"])
    daemon = Daemon(place, config_of(place, "without"), env=locks.env)
    path = save(daemon, 3)
    assert os.path.exists(path), ("a file system without locks: 3 saves", path)
    said = daemon.said("without locks")
    assert locks.get("injected") >= 3, ("  locks were requested", daemon.log())
    assert len(said) == 1 and place.file("without") in said[0], ("  one line warns of it", said)
    assert sorted(os.listdir(os.path.dirname(path))) == ["a.cursor", "mixes"], (
        "  no other file is left"
    )
    assert daemon.stop() == 0, "  exit 0"


def test_left_over_files_are_removed_later(place):
    """Left-over files are removed by the first job that can lock the run's directory."""
    daemon = Daemon(place, config_of(place, "later"))
    directory, lock = os.path.dirname(save(daemon)), place.file("later/.lock")
    daemon.stop()
    os.unlink(lock)
    os.mkdir(lock)
    with open(f"{directory}/.0123456789abcdef.new", "wb") as f:
        f.write(b"half of a cursor")
    daemon.start()
    told = save(daemon)
    assert has(told, lock), "a save fails that cannot open the lock file"
    assert len([n for n in os.listdir(directory) if n.endswith(".new")]) == 1, (
        "  and removes no file"
    )
    os.rmdir(lock)
    told = save(daemon)
    assert os.path.exists(told), ("the next one succeeds", told)
    assert sorted(os.listdir(directory)) == ["a.cursor", "mixes"], (
        "  and removes the left-over file"
    )
    assert daemon.stop() == 0, "  exit 0"
