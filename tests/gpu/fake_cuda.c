/*
 * A libcuda.so.1 without a GPU. It checks which calls are made, in which order and state, and is
 * stricter than a driver. It reports wrong contexts, unaligned or overlapping regions, streams and
 * events of other contexts, and memory that is unmapped while registered. It also reports calls in
 * a forked child, and calls that would invalidate another thread's capture.
 *
 * Queued work is done late, when a call asks about it. A slot that was released too early contains
 * other tokens by then, and the copy is wrong.
 *
 * "Device memory" is memory of the process. This proves nothing about real GPUs.
 */
#include "tests/gpu/fake_state.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* cuda.h, which declares them, is not used  \
						       */

/* ---- the driver ---- */

API int cuInit(unsigned flags)
{
	int error = number("FAKE_CUDA_INIT", 0);

	(void)flags;
	if (error)
		return error;
	pthread_mutex_lock(&mutex);
	if (process == 0) {
		process = getpid();
		for (int d = 0; d < DEVICES; d++)
			for (int i = 0; i < STREAMS; i++)
				primary[d].stream[i] = (struct stream){&primary[d], NULL,
					&primary[d].stream[i].first, i == 0, false, false};
		for (int d = 0; d < DEVICES; d++)
			primary[d].device = d;
	}
	pthread_mutex_unlock(&mutex);
	return OK;
}

API int cuGetErrorName(int error, const char **name)
{
	static const struct {
		int error;
		const char *name;
	} names[] = {{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
		{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {34, "CUDA_ERROR_STUB_LIBRARY"},
		{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
		{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
		{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
		{ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].error == error) {
			*name = names[i].name;
			return OK;
		}
	return INVALID_VALUE;
}

API int cuDeviceGetCount(int *count)
{
	*count = number("FAKE_CUDA_DEVICES", 1);
	return process ? OK : NOT_INITIALIZED;
}

API int cuDeviceGet(int *device, int ordinal)
{
	if (ordinal < 0 || ordinal >= number("FAKE_CUDA_DEVICES", 1))
		return INVALID_DEVICE;
	*device = ordinal;
	return process ? OK : NOT_INITIALIZED;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
	*flags = 0;
	*active = primary[device].refs > 0;
	return OK;
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (process != getpid()) {
		fault("cuDevicePrimaryCtxRetain in a child of the process that began");
		return NOT_INITIALIZED;
	}
	primary[device].refs++;
	*context = &primary[device];
	return OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
	if (--primary[device].refs < 0)
		fault("the primary context was released more often than retained");
	return OK;
}

API int cuCtxGetCurrent(void **context)
{
	*context = depth ? stack[depth - 1] : NULL;
	return process ? OK : NOT_INITIALIZED;
}

API int cuCtxGetDevice(int *device)
{
	if (depth == 0 || !stack[depth - 1])
		return INVALID_CONTEXT;
	*device = stack[depth - 1]->device;
	return OK;
}

API int cuCtxPushCurrent_v2(void *context)
{
	struct context *c = context;

	if (process != getpid()) {
		fault("cuCtxPushCurrent in a child of the process that began");
		return NOT_INITIALIZED;
	}
	if (c->refs <= 0 || depth == DEPTH)
		return INVALID_CONTEXT;
	stack[depth++] = c;
	return OK;
}

API int cuCtxPopCurrent_v2(void **context)
{
	if (depth == 0)
		return INVALID_CONTEXT;
	*context = stack[--depth];
	return OK;
}

API int cuCtxSetCurrent(void *context)
{
	if (depth == 0)
		depth = 1;
	stack[depth - 1] = context;
	return OK;
}

API int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int former = capture_mode;

	capture_mode = *mode;
	*mode = former;
	return OK;
}

/* ---- memory ---- */

API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
	uintptr_t begin_at = (uintptr_t)at;
	int error, fails = number("FAKE_CUDA_REGISTER_FAILS", 0);

	if (!enter(&error, "cuMemHostRegister", true))
		return error;
	check_regions("cuMemHostRegister");
	if (fails && ++registrations >= fails)
		return leave(OUT_OF_MEMORY);
	if (begin_at % PAGE || bytes % PAGE || bytes == 0 || bytes > CHUNK || flags != 3) {
		fault("cuMemHostRegister(%p, %zu, %u): not whole pages, more than 1 GiB, or not "
		      "PORTABLE and DEVICEMAP",
			at, bytes, flags);
		return leave(INVALID_VALUE);
	}
	if (find(host, hosts, begin_at, bytes))
		return leave(ALREADY_REGISTERED);

	unsigned long inode = mapped(begin_at, bytes, true);

	if (!inode || hosts == REGIONS)
		return leave(INVALID_VALUE);
	host[hosts++] = (struct region){begin_at, bytes, inode};
	return leave(OK);
}

API int cuMemHostUnregister(void *at)
{
	int error;

	if (!enter(&error, "cuMemHostUnregister", true))
		return error;
	check_regions("cuMemHostUnregister");
	for (int i = 0; i < hosts; i++)
		if (host[i].at == (uintptr_t)at) {
			host[i] = host[--hosts];
			return leave(OK);
		}
	return leave(NOT_REGISTERED);
}

API int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
	int error;

	if (!enter(&error, "cuMemAlloc", true))
		return error;

	void *m = memories < REGIONS ? calloc(1, bytes) : NULL;

	if (!m)
		return leave(OUT_OF_MEMORY);
	memory[memories++] = (struct region){(uintptr_t)m, bytes, 1};
	*at = (uintptr_t)m;
	return leave(OK);
}

API int cuMemFree_v2(uint64_t at)
{
	int error;

	if (!enter(&error, "cuMemFree", true))
		return error;
	for (int i = 0; i < memories; i++)
		if (memory[i].at == at) {
			memory[i] = memory[--memories];
			free((void *)at);
			return leave(OK);
		}
	return leave(INVALID_VALUE);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
	int error;
	struct context *c = enter(&error, "cuMemcpyHtoDAsync", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (!s) {
		fault("a copy on a stream of another context");
		return leave(INVALID_HANDLE);
	}
	if (!within(memory, memories, to, bytes)) {
		fault("a copy to %#" PRIx64 ", which is not in the device's memory", to);
		return leave(INVALID_VALUE);
	}
	if (s->capturing) {
		fault("a copy became part of a graph");
		return leave(OK);
	}

	struct op *op = queue(s, COPY);

	op->to = to;
	op->from = from;
	op->bytes = bytes;
	if (!within(host, hosts, (uintptr_t)from, bytes)) {
		op->staged = malloc(bytes);
		memcpy(op->staged, from, bytes);
	}
	return leave(OK);
}

/* ---- for tests ---- */

API int fakeFaults(void)
{
	return faults;
}

API int fakeRegistered(void)
{
	return hosts;
}

API void fakeHold(int on)
{
	held = on;
}

API void fakeRush(void)
{
	for (int d = 0; d < DEVICES; d++)
		for (int i = 0; i < STREAMS; i++)
			for (struct op *op = primary[d].stream[i].first; op; op = op->next)
				op->due_ns = 0;
}

API int fakePending(void)
{
	int n = 0;

	pthread_mutex_lock(&mutex);
	for (int d = 0; d < DEVICES; d++)
		for (int i = 0; i < STREAMS; i++)
			for (struct op *op = primary[d].stream[i].first; op; op = op->next)
				n++;
	pthread_mutex_unlock(&mutex);
	return n;
}

API void fakeCapture(void *stream, int on)
{
	((struct stream *)stream)->capturing = on;
	captures += on ? 1 : -1;
}

API int fakeCaptureSpoiled(void)
{
	return spoiled;
}

API int fakePrimaryRefs(int device)
{
	return primary[device].refs;
}
