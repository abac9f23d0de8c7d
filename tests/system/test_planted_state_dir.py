"""tests/unit/test_power_cut.c finds planted bugs of state_dir: each is built in, and the test must
fail with these words.
"""

import subprocess

import pytest

from lib.planted import program

DURABLE, SNAPSHOT = "daemon/control/durable.c", "daemon/control/snapshot_file.c"
RUN_DIR, MIX_LOG = "daemon/control/run_dir.c", "daemon/control/mix_log.c"
NO_FSYNC = [("(n == 0 && fsync(fd) == 0)", "(n == 0)")]
RENAMED = "if (renameat(at, temporary, at, name) == 0)\n\t\t\treturn true;"
SYNC_LATER = """if (renameat(at, temporary, at, name) == 0) {
			int fd = openat(at, name, O_RDONLY | O_CLOEXEC);
			bool ok = fsync(fd) == 0;
			close(fd);
			return ok;
		}"""
OVERWRITE = "\tif (true)\n\t\treturn durable_write_file(at, name, bytes, n, fault);\n"
BEFORE_WRITE = "\tif (durable_write_file(at, temporary"
TOOK_BACK = "\ttake_back(dir->at, name, former, saved->replaced);\n"

CUT, KILL, FAIL = "the_power_fails*", "a_daemon_is_killed*", "every_call_fails"
BUGS = {  # name: ({file: [(old, new), …]}, the test that finds it, in these words)
    "file-not-synced": ({DURABLE: NO_FSYNC}, CUT, "not a uid"),
    "directory-not-synced": (
        {DURABLE: [("return fsync(at) == 0 || failed", "return true || failed")]},
        CUT,
        "a is lost",
    ),
    "renamed-before-sync": (
        {DURABLE: NO_FSYNC, SNAPSHOT: [(RENAMED, SYNC_LATER)]},
        CUT,
        "not a uid",
    ),
    "overwritten-in-place": (
        {SNAPSHOT: [(BEFORE_WRITE, OVERWRITE + BEFORE_WRITE)]},
        CUT,
        "the file is empty",
    ),
    "former-not-kept": (
        {SNAPSHOT: [("(!replaced || keep_former(at, name, former, fault))", "true")]},
        CUT,
        "a.former is lost",
    ),
    "failed-sync-tried-again": (
        {DURABLE: [("&& fsync(fd) == 0)", "&& (fsync(fd) == 0 || fsync(fd) > 0))")]},
        FAIL,
        "used after its fsync() failed",
    ),
    "unsynced-save-not-taken-back": ({SNAPSHOT: [(TOOK_BACK, "")]}, FAIL, "a is lost"),
    "directories-of-a-killed-daemon": (
        {RUN_DIR: [("(dir->path, place->clean, fault)", "(dir->path, false, fault)")]},
        KILL,
        "a is lost",
    ),
    "owner-not-synced": (
        {RUN_DIR: [('\tunlinkat(dir->at, ".owner", 0);', "")]},
        FAIL,
        "belongs to uid -1",
    ),
    "mix-of-a-killed-daemon": (
        {MIX_LOG: [("if (fsync(log->at) < 0)", "if (false)")]},
        KILL,
        "mix log: ",
    ),
    "no-lock": (
        {RUN_DIR: [("return fcntl(locks->fd, F_SETLK, &lock) == 0;", "return true;")]},
        "two_daemons*",
        "two daemons, step",
    ),
    "error-taken-for-no-snapshot": (
        {SNAPSHOT: [("if (errno == ENOENT || errno == ENOTDIR)", "if (true)")]},
        "a_failed_read*",
        "strerror(EIO)",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_power_cuts_find(name):
    changes, finder, words = BUGS[name]
    test = program("state-dir-" + name, "build/gcc/check/test_power_cut", changes)
    done = subprocess.run([test, finder], capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode != 0, ("the test fails", said)
    assert words in said, ("  with the words", said)
