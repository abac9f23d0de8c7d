"""A process may end right after the loader's last collective: gloo's threads do not abort it."""

import shutil
import subprocess
import sys

import pytest
from lib import child_environment

# gloo's threads pause before they release a collective, until Python is ending and holds its lock.
LATE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static volatile int ending;
/* that of the queue of work, which such a thread takes first of all */
static __thread pthread_mutex_t *first;

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*lock)(pthread_mutex_t *);
	static __thread int known;
	if (!lock)
		lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	if (!known) {
		char name[17] = "";
		prctl(PR_GET_NAME, name);
		known = getpid() == gettid() ? 1 : strncmp(name, "pt_gloo", 7) ? 0 : 2;
		if (known == 2)
			first = m;
	} else if (m == first)
		for (int i = 0; i < 300 && !ending; i++)
			usleep(1000);
	return lock(m);
}

void at_end(void)
{
	ending = 1;
	usleep(50000);
}
"""

PROGRAM = """
import atexit, ctypes, sys

# the first to be registered is the last to be called
atexit.register(ctypes.PyDLL(sys.argv[1]).at_end)
import torch, torch.distributed as dist
import tokend

dist.init_process_group(
    "gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[3]), world_size=2
)
loader = tokend.Loader("train", 2, socket=sys.argv[4])
loader.control()
if sys.argv[5] == "seek":
    loader.seek(position=8)
"""


@pytest.mark.parametrize("last", ["attach", "seek"])
def test_a_job_may_end_right_after_its_last_collective(served, directory, last):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("no C compiler")
    late = str(directory / "late.so")
    command = [compiler, "-shared", "-fPIC", "-O1", "-xc", "-", "-o", late, "-ldl"]
    subprocess.run(command, input=LATE, text=True, check=True)
    environment = child_environment(OMP_NUM_THREADS="1", LD_PRELOAD=late)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, late, directory / "meet", rank, served.socket, last],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        for process in processes:
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
