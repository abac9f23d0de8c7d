/* The machine: kernel, memory, clock, and a GPU's driver. */
#include "client/ctl/doctor/doctor.h"
#include "daemon/control/cgroup.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { KERNEL_MAJOR = 5, KERNEL_MINOR = 14, RING_BYTES = 4 << 20 };
enum { PORTABLE = 1, DEVICEMAP = 2 }; /* as cuda.h has them */

static void check_kernel(struct doctor *d)
{
	struct utsname name;
	unsigned major = 0, minor = 0;

	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	if (major > KERNEL_MAJOR || (major == KERNEL_MAJOR && minor >= KERNEL_MINOR))
		doctor_ok(d, "kernel", "Linux %s", name.release);
	else
		doctor_fix(d, "kernel", "use Linux 5.14 or newer", "Linux %s is too old",
			name.release);
}

/* By the system call: tokctl needs nothing else of liburing. */
static void check_io_uring(struct doctor *d)
{
	struct io_uring_params params = {0};
	int fd = (int)syscall(SYS_io_uring_setup, 8, &params);

	if (fd >= 0)
		doctor_ok(d, "io_uring", "this process may use it");
	else if (d->config && d->config->io == CONFIG_IO_PREAD)
		doctor_skip(d, "io_uring", "io: pread does not use it");
	else
		doctor_fix(d, "io_uring",
			"allow it with `sysctl kernel.io_uring_disabled=0`, or in the container's "
			"seccomp profile; or set io: pread",
			"%s: the daemon reads with threads instead, which costs more CPU",
			strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* Memory as that of a ring, until the process ends; or MAP_FAILED. */
static void *ring_memory(void)
{
	int fd = memfd_create("tokend-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, RING_BYTES) < 0)
		return MAP_FAILED;
	return mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
}

/* Rings are memfds, which /dev/shm and RLIMIT_MEMLOCK do not limit. */
static void check_rings(struct doctor *d)
{
	struct rlimit locked = {.rlim_cur = 0};

	getrlimit(RLIMIT_MEMLOCK, &locked);
	if (ring_memory() == MAP_FAILED)
		doctor_fix(d, "rings", "allow memfd_create() in the sandbox or seccomp profile",
			"no shared memory can be made: %s", strerror(errno));
	else
		doctor_ok(d, "rings",
			"shared memory can be made; /dev/shm and RLIMIT_MEMLOCK (%" PRIu64
			" KiB) do not limit it",
			(uint64_t)locked.rlim_cur >> 10);
}

/* The groups of this process: a service has its own limit, which the daemon checks. */
static void check_memory(struct doctor *d)
{
	struct cgroup *cgroup = cgroup_find("");
	struct cgroup_room room;
	uint64_t wanted = d->config ? d->config->memory_bytes : 0;

	if (!cgroup || !cgroup_room(cgroup, &room))
		doctor_ok(d, "memory", "no cgroup limits this process");
	else if (room.left < wanted)
		doctor_fix(d, "memory", "raise the cgroup's limit, or lower memory:",
			"cgroup %s leaves %" PRIu64 " MiB; memory: is %" PRIu64 " MiB", room.path,
			room.left >> 20, wanted >> 20);
	else
		doctor_ok(d, "memory", "cgroup %s leaves %" PRIu64 " MiB", room.path,
			room.left >> 20);
	cgroup_free(cgroup);
}

/* Records have the time of day: `tokctl verify` orders restarts by it. */
static void check_clock(struct doctor *d)
{
	struct timex clock = {.modes = 0};
	int state = adjtimex(&clock);

	if (state == -1)
		doctor_skip(d, "clock", "cannot ask the kernel: %s", strerror(errno));
	else if (state == TIME_ERROR)
		doctor_fix(d, "clock", "run chrony or systemd-timesyncd",
			"not synchronised; `tokctl verify` orders a job's restarts by it");
	else
		doctor_ok(d, "clock", "synchronised to within %ld ms", clock.maxerror / 1000);
}

void doctor_machine(struct doctor *d)
{
	check_kernel(d);
	check_io_uring(d);
	check_rings(d);
	check_memory(d);
	check_clock(d);
}

/* The driver is loaded with dlopen(): tokctl needs no CUDA. It keeps what it has until the process
 * ends. */
void doctor_gpu(struct doctor *d)
{
	static int (*init)(unsigned flags), (*devices)(int *count), (*push)(void *context);
	static int (*retain)(void **context, int device);
	static int (*pin)(void *at, size_t bytes, unsigned flags);
	static const struct {
		const char *name;
		void *to;
	} symbols[] = {{"cuInit", &init}, {"cuDeviceGetCount", &devices},
		{"cuDevicePrimaryCtxRetain", &retain}, {"cuCtxPushCurrent_v2", &push},
		{"cuMemHostRegister_v2", &pin}};
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context, *at;
	int count = 0, error;

	if (!library) {
		doctor_skip(d, "gpu", "no NVIDIA driver here (libcuda.so.1)");
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(library, symbols[i].name);

		memcpy(symbols[i].to, &symbol, sizeof(symbol));
		if (!symbol) {
			doctor_fix(d, "gpu", "install a driver of CUDA 11 or newer",
				"libcuda.so.1 lacks functions");
			return;
		}
	}
	if ((error = init(0)) != 0 || (error = devices(&count)) != 0)
		doctor_fix(d, "gpu", "look at nvidia-smi, and at the permissions of /dev/nvidia*",
			"the driver does not start: error %d", error);
	else if (count == 0)
		doctor_fix(d, "gpu", "look at nvidia-smi", "the driver shows no GPU");
	else if ((at = ring_memory()) == MAP_FAILED)
		doctor_skip(d, "gpu", "no shared memory can be made");
	else if ((error = retain(&context, 0)) != 0 || (error = push(context)) != 0 ||
		 (error = pin(at, RING_BYTES, PORTABLE | DEVICEMAP)) != 0)
		doctor_fix(d, "gpu", "update the driver; until then copies to the GPU are slower",
			"the driver does not pin shared memory: error %d", error);
	else
		doctor_ok(d, "gpu", "%d, and the driver pins shared memory", count);
}
