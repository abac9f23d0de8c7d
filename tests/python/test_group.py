"""A process may end right after the loader's last collective: gloo's threads do not abort it."""

import subprocess
import sys

from lib import child_environment
from lib.preload import Preload

# gloo's threads pause before they release a collective, until Python is ending and holds its lock.
LATE = r"""
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>

static volatile int ending;
/* that of the queue of work, which such a thread takes first of all */
static __thread pthread_mutex_t *first;

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static __thread int known;
	NEXT(pthread_mutex_lock);
	if (!known) {
		char name[17] = "";
		prctl(PR_GET_NAME, name);
		known = getpid() == gettid() ? 1 : strncmp(name, "pt_gloo", 7) ? 0 : 2;
		if (known == 2)
			first = m;
	} else if (m == first)
		for (int i = 0; i < 300 && !ending; i++)
			usleep(1000);
	return next(m);
}

void at_end(void)
{
	ending = 1;
	usleep(50000);
}
"""
PROGRAM = """
import atexit, ctypes, os, sys

# the first to be registered is the last to be called
atexit.register(ctypes.PyDLL(os.environ["LD_PRELOAD"]).at_end)
import torch, torch.distributed as dist
import tokend

torch.set_default_device("meta")  # the group's values are in the CPU's memory
meet = "file://" + sys.argv[1]
dist.init_process_group("gloo", init_method=meet, rank=int(sys.argv[2]), world_size=2)
loader = tokend.Loader("train", 2, socket=sys.argv[3])
loader.control()
loader.seek(position=8)
"""


def test_a_job_may_end_right_after_its_last_collective(served, place):
    late = Preload(place, LATE, ["unused"])
    ways = {"stderr": subprocess.PIPE, "text": True}
    ways["env"] = child_environment(OMP_NUM_THREADS="1", **late.env)
    command = [sys.executable, "-c", PROGRAM, place.file("meet")]
    processes = [subprocess.Popen([*command, rank, served.socket], **ways) for rank in ("0", "1")]
    try:
        for process in processes:
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
            process.wait()
