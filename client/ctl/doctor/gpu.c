/* The driver is loaded with dlopen(): tokctl needs no CUDA. */
#include "client/ctl/doctor/report.h"

#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4 << 20, PORTABLE = 1, DEVICEMAP = 2 };

struct driver {
	int (*init)(unsigned flags);
	int (*devices)(int *count);
	int (*retain)(void **context, int device);
	int (*release)(int device);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*pin)(void *at, size_t bytes, unsigned flags);
	int (*unpin)(void *at);
};

static bool load(void *library, struct driver *driver)
{
	const struct {
		const char *name;
		void *to;
	} symbols[] = {{"cuInit", &driver->init}, {"cuDeviceGetCount", &driver->devices},
		{"cuDevicePrimaryCtxRetain", &driver->retain},
		{"cuDevicePrimaryCtxRelease_v2", &driver->release},
		{"cuCtxPushCurrent_v2", &driver->push}, {"cuCtxPopCurrent_v2", &driver->pop},
		{"cuMemHostRegister_v2", &driver->pin}, {"cuMemHostUnregister", &driver->unpin}};

	for (unsigned i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*(void **)symbols[i].to = dlsym(library, symbols[i].name);
		if (!*(void **)symbols[i].to)
			return false;
	}
	return true;
}

/* Pins memory as a trainer pins its ring. Returns the driver's error. */
static int pin(const struct driver *driver)
{
	int fd = memfd_create("tokend-doctor", MFD_CLOEXEC), error = -1;
	void *context, *at = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, BYTES) == 0)
		at = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (at != MAP_FAILED) {
		error = driver->retain(&context, 0);
		if (error == 0) {
			error = driver->push(context);
			if (error == 0)
				error = driver->pin(at, BYTES, PORTABLE | DEVICEMAP);
			if (error == 0)
				driver->unpin(at);
			driver->pop(&context);
			driver->release(0);
		}
		munmap(at, BYTES);
	}
	if (fd >= 0)
		close(fd);
	return error;
}

void doctor_gpu(struct doctor *d)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	struct driver driver;
	int count = 0, error;

	if (!library) {
		doctor_skip(d, "gpu", "no NVIDIA driver here (libcuda.so.1)");
		return;
	}
	if (!load(library, &driver)) {
		doctor_fix(d, "gpu", "install a driver of CUDA 11 or newer",
			"libcuda.so.1 lacks functions");
	} else if ((error = driver.init(0)) != 0 || (error = driver.devices(&count)) != 0) {
		doctor_fix(d, "gpu", "look at nvidia-smi, and at the permissions of /dev/nvidia*",
			"the driver does not start: error %d", error);
	} else if (count == 0) {
		doctor_fix(d, "gpu", "look at nvidia-smi", "the driver shows no GPU");
	} else if ((error = pin(&driver)) != 0) {
		doctor_fix(d, "gpu", "update the driver; until then copies to the GPU are slower",
			"the driver does not pin shared memory: error %d", error);
	} else {
		doctor_ok(d, "gpu", "%d, and the driver pins shared memory", count);
	}
	dlclose(library);
}
