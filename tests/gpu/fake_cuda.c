/*
 * A libcuda.so.1 without a GPU. It checks which calls are made, in which order and state, and is
 * stricter than a driver. It reports calls without a context or in a forked child, and streams of
 * other contexts. It also reports unaligned or overlapping regions, memory that is unmapped while
 * registered, and calls that would invalidate another thread's capture.
 *
 * Queued work is done late, when a call asks about it. A slot that was released too early contains
 * other tokens by then, and the copy is wrong.
 *
 * "Device memory" is memory of the process. This proves nothing about real GPUs.
 */
#include "tests/gpu/fake_cuda.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* cuda.h, which declares them, is not used */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define API	   __attribute__((visibility("default")))
#define FAULT(...) (fprintf(stderr, "fake libcuda: " __VA_ARGS__), fputc('\n', stderr), faults++)

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	STUB_LIBRARY = 34,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	PAGE = 4096,
	DEVICES = 2,
	STREAMS = 8,
	REGIONS = 4096,
	DEPTH = 16,
	RELAXED = 2,
	CHUNK = 1 << 30,
};

/* A copy, or a call of the host if there is one. */
struct op {
	int64_t due_ns;
	char *to;
	const char *from;
	char *staged; /* copy of unregistered memory, which is read at once */
	size_t bytes;
	void (*call)(void *data);
	void *data;
	struct op *next;
};

struct stream {
	struct op *first, **last;
	uint64_t queued, done; /* numbers of operations */
	bool used, capturing, busy;
};

struct context {
	int device, refs;
	struct stream stream[STREAMS]; /* [0]: the default one */
};

/* Is over when each stream has done this many operations. */
struct event {
	struct context *context;
	uint64_t until[STREAMS];
};

struct region {
	char *at;
	size_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all that follows */
static struct context primary[DEVICES];
static struct region host[REGIONS], memory[REGIONS];
static int faults, hosts, memories, registrations, captures, spoiled, held;
static pid_t process;
static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth, capture_mode;

static int number(const char *name)
{
	const char *value = getenv(name);

	return value ? atoi(value) : 0;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- regions ---- */

static struct region *find(struct region *list, int n, const char *at, size_t bytes)
{
	for (int i = 0; i < n; i++)
		if (list[i].at < at + bytes && at < list[i].at + list[i].bytes)
			return &list[i];
	return NULL;
}

static bool within(struct region *list, int n, const char *at, size_t bytes)
{
	struct region *r = find(list, n, at, bytes);

	return r && r->at <= at && at + bytes <= r->at + r->bytes;
}

static bool mapped(const struct region *r)
{
	return msync(r->at, r->bytes, MS_ASYNC) == 0;
}

static void check_regions(void)
{
	for (int i = 0; i < hosts; i++)
		if (!mapped(&host[i])) {
			FAULT("%zu bytes were unmapped while registered", host[i].bytes);
			host[i--] = host[--hosts];
		}
}

__attribute__((destructor)) static void at_exit(void)
{
	if (process != getpid())
		return;
	check_regions();
	if (faults > 0)
		_exit(99);
}

/* ---- contexts ---- */

static bool in_child(const char *name)
{
	if (process == getpid())
		return false;
	FAULT("%s before cuInit, or in a child of the process that began", name);
	return true;
}

/* Locks the mutex and returns the current context; or returns NULL and sets *error. @disturbs: it
 * invalidates captures in other threads. */
static struct context *enter(int *error, const char *name, bool disturbs)
{
	pthread_mutex_lock(&mutex);
	*error = OK;
	if (in_child(name))
		*error = NOT_INITIALIZED;
	else if (depth == 0 || !stack[depth - 1]) {
		FAULT("%s without a current context", name);
		*error = INVALID_CONTEXT;
	} else if (disturbs && captures > 0) {
		spoiled = 1;
		*error = CAPTURE_UNSUPPORTED;
	}
	if (*error == OK)
		return stack[depth - 1];
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static int leave(int error)
{
	pthread_mutex_unlock(&mutex);
	return error;
}

/* Begins a function of the driver. @mode: if that of the thread is not relaxed, it disturbs. */
#define ENTER(disturbs)                                                                            \
	int error;                                                                                 \
	struct context *c = enter(&error, __func__, disturbs);                                     \
                                                                                                   \
	if (!c)                                                                                    \
	return error
#define IN_STRICT_MODE (capture_mode != RELAXED)

API int cuInit(unsigned flags)
{
	int fails = number("FAKE_CUDA_INIT");

	(void)flags;
	if (fails || process)
		return fails;
	process = getpid();
	for (int d = 0; d < DEVICES; d++) {
		primary[d].device = d;
		primary[d].stream[0].used = true;
		for (int i = 0; i < STREAMS; i++)
			primary[d].stream[i].last = &primary[d].stream[i].first;
	}
	return OK;
}

API int cuGetErrorName(int error, const char **name)
{
	*name = error == INVALID_VALUE	  ? "CUDA_ERROR_INVALID_VALUE"
		: error == OUT_OF_MEMORY  ? "CUDA_ERROR_OUT_OF_MEMORY"
		: error == STUB_LIBRARY	  ? "CUDA_ERROR_STUB_LIBRARY"
		: error == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE"
					  : NULL;
	return *name ? OK : INVALID_VALUE;
}

API int cuDeviceGetCount(int *count)
{
	*count = DEVICES;
	return OK;
}

API int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return ordinal >= 0 && ordinal < DEVICES ? OK : INVALID_DEVICE;
}

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
	*flags = 0;
	*active = primary[device].refs > 0;
	return OK;
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (in_child(__func__))
		return NOT_INITIALIZED;
	primary[device].refs++;
	*context = &primary[device];
	return OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
	if (--primary[device].refs < 0)
		FAULT("the primary context was released more often than retained");
	return OK;
}

API int cuCtxGetCurrent(void **context)
{
	*context = depth ? stack[depth - 1] : NULL;
	return OK;
}

API int cuCtxGetDevice(int *device)
{
	*device = stack[depth - 1]->device;
	return OK;
}

API int cuCtxPushCurrent_v2(void *context)
{
	if (in_child(__func__))
		return NOT_INITIALIZED;
	if (((struct context *)context)->refs <= 0 || depth == DEPTH)
		return INVALID_CONTEXT;
	stack[depth++] = context;
	return OK;
}

API int cuCtxPopCurrent_v2(void **context)
{
	*context = stack[--depth];
	return OK;
}

API int cuCtxSetCurrent(void *context)
{
	depth = 1;
	stack[0] = context;
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
	struct region region = {at, bytes};
	int fails = number("FAKE_CUDA_REGISTER_FAILS");

	ENTER(IN_STRICT_MODE);
	check_regions();
	if (fails && ++registrations >= fails)
		return leave(OUT_OF_MEMORY);
	if ((uintptr_t)at % PAGE || bytes % PAGE || bytes == 0 || bytes > CHUNK || flags != 3 ||
		!mapped(&region) || find(host, hosts, at, bytes) || hosts == REGIONS) {
		FAULT("%s(%p, %zu, %u): not whole pages, more than 1 GiB, not PORTABLE and "
		      "DEVICEMAP, not mapped, or registered before",
			__func__, at, bytes, flags);
		return leave(INVALID_VALUE);
	}
	host[hosts++] = region;
	return leave(OK);
}

API int cuMemHostUnregister(void *at)
{
	ENTER(IN_STRICT_MODE);
	check_regions();
	for (int i = 0; i < hosts; i++)
		if (host[i].at == at) {
			host[i] = host[--hosts];
			return leave(OK);
		}
	FAULT("%s(%p), which is not registered", __func__, at);
	return leave(INVALID_VALUE);
}

API int cuMemAlloc_v2(char **at, size_t bytes)
{
	ENTER(IN_STRICT_MODE);
	*at = memories < REGIONS ? calloc(1, bytes) : NULL;
	if (!*at)
		return leave(OUT_OF_MEMORY);
	memory[memories++] = (struct region){*at, bytes};
	return leave(OK);
}

/* ---- streams ---- */

static struct stream *stream_of(struct context *c, struct stream *handle)
{
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used && (handle ? handle == &c->stream[i] : i == 0))
			return &c->stream[i];
	FAULT("a stream of another context");
	return NULL;
}

static void queue(struct stream *s, struct op work)
{
	struct op *op = malloc(sizeof(*op));

	*op = work;
	op->due_ns = now_ns() + number("FAKE_CUDA_DELAY_MS") * INT64_C(1000000);
	*s->last = op;
	s->last = &op->next;
	s->queued++;
}

static void copy_now(const struct op *op)
{
	struct region region = {(char *)((uintptr_t)op->from / PAGE * PAGE), op->bytes};

	if (op->staged)
		memcpy(op->to, op->staged, op->bytes);
	else if (!within(host, hosts, op->from, op->bytes) || !mapped(&region))
		FAULT("a copy from memory that was unregistered or unmapped while it was queued");
	else
		memcpy(op->to, op->from, op->bytes);
}

/* Does the due work of a stream. @all: also work that is not due yet. */
static void advance(struct stream *s, bool all)
{
	struct op *op;

	while ((op = s->first) && !s->busy && (all || (!held && now_ns() >= op->due_ns))) {
		while (now_ns() < op->due_ns)
			usleep(200);
		s->busy = true;
		if (op->call) {
			pthread_mutex_unlock(&mutex);
			op->call(op->data);
			pthread_mutex_lock(&mutex);
		} else
			copy_now(op);
		s->busy = false;
		s->done++;
		s->first = op->next;
		if (!s->first)
			s->last = &s->first;
		free(op->staged);
		free(op);
	}
}

static void advance_all(struct context *c, bool all)
{
	for (int i = 0; i < STREAMS; i++)
		advance(&c->stream[i], all);
}

API int cuMemcpyHtoDAsync_v2(char *to, const char *from, size_t bytes, void *stream)
{
	ENTER(false);
	struct op op = {.to = to, .from = from, .bytes = bytes};
	struct stream *s = stream_of(c, stream);

	if (!s)
		return leave(INVALID_HANDLE);
	if (!within(memory, memories, to, bytes) || s->capturing) {
		FAULT("a copy to %p, which is not in the device's memory, or in a graph", to);
		return leave(INVALID_VALUE);
	}
	if (!within(host, hosts, from, bytes)) {
		op.staged = malloc(bytes);
		memcpy(op.staged, from, bytes);
	}
	queue(s, op);
	return leave(OK);
}

API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
	ENTER(false);
	queue(stream_of(c, stream), (struct op){.call = call, .data = data});
	return leave(OK);
}

API int cuStreamCreate(struct stream **stream, unsigned flags)
{
	(void)flags;
	ENTER(false);
	for (int i = 1; i < STREAMS; i++)
		if (!c->stream[i].used) {
			c->stream[i].used = true;
			*stream = &c->stream[i];
			return leave(OK);
		}
	return leave(OUT_OF_MEMORY);
}

API int cuStreamIsCapturing(void *stream, int *status)
{
	ENTER(false);
	struct stream *s = stream_of(c, stream);

	*status = s && s->capturing;
	return leave(s ? OK : INVALID_HANDLE);
}

API int cuStreamSynchronize(void *stream)
{
	ENTER(IN_STRICT_MODE);
	struct stream *s = stream_of(c, stream);

	if (s)
		advance(s, true);
	return leave(s ? OK : INVALID_HANDLE);
}

/* This and cuCtxRecordEvent() invalidate any capture in the context, in every mode. */
API int cuCtxSynchronize(void)
{
	ENTER(true);
	advance_all(c, true);
	return leave(OK);
}

/* ---- events ---- */

API int cuEventCreate(struct event **event, unsigned flags)
{
	(void)flags;
	ENTER(false);
	*event = calloc(1, sizeof(**event));
	(*event)->context = c;
	return leave(OK);
}

static bool over(const struct event *e)
{
	for (int i = 0; i < STREAMS; i++)
		if (e->context->stream[i].done < e->until[i])
			return false;
	return true;
}

API int cuEventDestroy_v2(struct event *event)
{
	ENTER(false);
	if (!over(event))
		FAULT("an event was destroyed before its time");
	free(event);
	return leave(OK);
}

API int cuEventRecord(struct event *event, void *stream)
{
	ENTER(false);
	struct stream *s = stream_of(c, stream);

	if (!s || event->context != c) {
		FAULT("an event and a stream of different contexts");
		return leave(INVALID_HANDLE);
	}
	memset(event->until, 0, sizeof(event->until));
	event->until[s - c->stream] = s->queued;
	return leave(OK);
}

API int cuCtxRecordEvent(void *context, struct event *event)
{
	(void)context;
	if (number("FAKE_CUDA_NO_RECORD"))
		return NOT_SUPPORTED;
	ENTER(true);
	for (int i = 0; i < STREAMS; i++)
		event->until[i] = c->stream[i].queued;
	return leave(OK);
}

API int cuEventQuery(const struct event *event)
{
	ENTER(IN_STRICT_MODE);
	advance_all(c, false);
	return leave(over(event) ? OK : NOT_READY);
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
	for (int i = 0; i < STREAMS; i++)
		for (struct op *op = primary[0].stream[i].first; op; op = op->next)
			op->due_ns = 0;
}

API int fakePending(void)
{
	uint64_t n = 0;

	for (int i = 0; i < STREAMS; i++)
		n += primary[0].stream[i].queued - primary[0].stream[i].done;
	return (int)n;
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
