"""The daemon's two loops make no file-system call that can hang. The data thread only looks at open
files of local file systems.

A preloaded library sees the calls of every thread, while clients attach at snapshots, read, save,
ask for the status and leave, and while /metrics is read.
"""

import urllib.request

import numpy

from lib import TOKCTL, Client, Daemon, Refused, datasets, free_port, rows_at, run
from lib.preload import OPENS, Preload

SEEN = r"""
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <dirent.h>

/* Notes a call by control or data thread, or by another one. */
static void note(const char *call, const char *path)
{
	char name[16] = "";

	if (!words || !words[ARMED])
		return;
	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (gettid() != getpid() && strcmp(name, "tokend-data") != 0) {
		words[OTHERS]++;
		return;
	}
	/* The look at an open file; if its storage may hang, the pool does it. */
	if (gettid() != getpid() && strcmp(call, "statx") == 0 && path[0] == 0)
		return;
	if (words[LOOPS]++ == 0)
		snprintf((char *)&words[FIRST], 400, "%s: %s %s", name, call, path);
}

#define PATH_CALL(type, name, path, parameters, arguments) \
	type name parameters \
	{ \
		NEXT(name); \
		note(#name, path); \
		return next arguments; \
	}

static int opening(const char *call, const char *path)
{
	note(call, path);
	return 0;
}

PATH_CALL(FILE *, fopen, path, (const char *path, const char *how), (path, how))
PATH_CALL(DIR *, opendir, path, (const char *path), (path))
PATH_CALL(int, stat, path, (const char *path, struct stat *to), (path, to))
PATH_CALL(int, lstat, path, (const char *path, struct stat *to), (path, to))
PATH_CALL(int, fstatat, path, (int at, const char *path, struct stat *to, int flags),
	(at, path, to, flags))
PATH_CALL(int, statx, path,
	(int at, const char *path, int flags, unsigned mask, struct statx *to),
	(at, path, flags, mask, to))
PATH_CALL(int, access, path, (const char *path, int mode), (path, mode))
PATH_CALL(int, unlink, path, (const char *path), (path))
PATH_CALL(int, unlinkat, path, (int at, const char *path, int flags), (at, path, flags))
PATH_CALL(int, rename, to, (const char *path, const char *to), (path, to))
PATH_CALL(int, renameat, to, (int a, const char *path, int b, const char *to), (a, path, b, to))
PATH_CALL(int, mkdir, path, (const char *path, mode_t mode), (path, mode))
PATH_CALL(int, mkdirat, path, (int at, const char *path, mode_t mode), (at, path, mode))
PATH_CALL(int, linkat, to, (int a, const char *path, int b, const char *to, int flags),
	(a, path, b, to, flags))
PATH_CALL(int, fsync, "", (int fd), (fd))
PATH_CALL(int, fdatasync, "", (int fd), (fd))
"""
SHARDS = 6


def test_the_loops_make_no_file_system_call(place, mode):
    for number in range(SHARDS):
        place.shard(f"web/{number}.bin", 5_000)
    port = free_port()
    stream = {"seed": 3, "seq_len": 64, "datasets": datasets("web")}
    io, direct = mode
    config = place.config(
        streams={"train": stream}, metrics=f"127.0.0.1:{port}", io=io, direct=direct
    )
    calls = Preload(place, SEEN + OPENS, ["armed", "loops", "others", "first"])
    daemon = Daemon(place, config, env=calls.env)
    rows = rows_at(config, "train", 0, 2000)
    calls.set(armed=1)
    for visit in range(8):
        client = Client(daemon.socket).attach(run=f"run{visit % 3}")
        for at in range(0, 100, 2):
            assert numpy.array_equal(client.next(), rows[at : at + 2])
        client.ask(op="checkpoint", tag=f"tag{visit}", cursor=client.feed["cursor"])
        client.close()
        client = Client(daemon.socket)
        client.attach(run=f"run{visit % 3}", tag=f"tag{visit}")
        client.close()
        try:
            Client(daemon.socket).attach(tag="nowhere")
        except Refused as error:
            assert error.packet["field"] == "tag"
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read()
    assert run(TOKCTL, "status", "--socket", daemon.socket)[0] == 0
    first = bytes(calls.words[3:60]).split(b"\0")[0].decode()
    assert calls.get("others") > 20, "the library sees what pool and keeper open and write"
    assert calls.get("loops") == 0, first
    calls.set(armed=0)
    assert daemon.stop() == 0, "exit 0"
