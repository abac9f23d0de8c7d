/*
 * A libcuda.so.1 without a GPU, for tests of the protocol: which calls are made, in which order, in
 * which state. It is stricter than a driver: contexts, page alignment, regions that overlap,
 * streams and events of other contexts, memory unmapped while it is registered, calls in a child
 * after fork(), calls that would spoil a capture elsewhere. What is queued on a stream is done
 * late, when something asks about it: a slot that was given back too early has other tokens by
 * then, and shows as wrong bytes.
 *
 * "Device memory" is memory of the process. Nothing here is evidence of how a GPU behaves.
 */
#include "tests/gpu/fake_cuda.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* they are in cuda.h, which is not here */

enum {
	OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_READY = 600,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801,
	CAPTURE_UNSUPPORTED = 900,
	PAGE = 4096,
	DEVICES = 4,
	STREAMS = 64,
	REGIONS = 4096,
	DEPTH = 16,
	RELAXED = 2,
	CHUNK = 1 << 30,
};

struct event {
	struct context *context;
	uint64_t recording; /* the last one */
	int waits;	    /* streams that have not come to it */
};

struct op {
	enum { COPY, RECORD, HOST } kind;
	int64_t due_ns;
	uint64_t to;
	const void *from;
	void *staged; /* memory that was not registered is read at once */
	size_t bytes;
	struct event *event;
	uint64_t recording;
	void (*call)(void *data);
	void *data;
	struct op *next;
};

struct stream {
	struct context *context;
	struct op *first, **last;
	bool used, capturing, busy;
};

struct context {
	int device, refs;
	struct stream stream[STREAMS]; /* [0]: the default one */
};

struct region {
	uintptr_t at;
	size_t bytes;
	unsigned long inode;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct context primary[DEVICES];
static struct region host[REGIONS], memory[REGIONS];
static int faults, hosts, memories, registrations, captures, spoiled, held;
static pid_t process;
static _Thread_local struct context *stack[DEPTH];
static _Thread_local int depth, capture_mode;

static void fault(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "fake libcuda: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	faults++;
}

static int number(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value && value[0] ? atoi(value) : otherwise;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- what is mapped ---- */

/* The inode of the one file that all of the range shows, 1 if it is anonymous, 0 if it is not all
 * mapped. */
static unsigned long mapped(uintptr_t at, size_t bytes, bool writable)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t reached = at, begin, end;
	unsigned long inode, found = 0;
	char mode[8], line[512];

	while (maps && reached < at + bytes && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &begin, &end, mode, &inode) != 4)
			continue;
		if (begin <= reached && reached < end && (!writable || mode[1] == 'w')) {
			found = inode ? inode : 1;
			reached = end;
		}
	}
	if (maps)
		fclose(maps);
	return reached >= at + bytes ? found : 0;
}

static struct region *find(struct region *list, int n, uintptr_t at, size_t bytes)
{
	for (int i = 0; i < n; i++)
		if (list[i].at < at + bytes && at < list[i].at + list[i].bytes)
			return &list[i];
	return NULL;
}

static bool within(struct region *list, int n, uintptr_t at, size_t bytes)
{
	struct region *r = find(list, n, at, bytes);

	return r && r->at <= at && at + bytes <= r->at + r->bytes;
}

static void check_regions(const char *when)
{
	for (int i = 0; i < hosts; i++)
		if (mapped(host[i].at, host[i].bytes, true) != host[i].inode) {
			fault("%zu bytes at %#" PRIxPTR
			      " were unmapped while registered (seen at %s)",
				host[i].bytes, host[i].at, when);
			host[i] = host[--hosts];
			i--;
		}
}

__attribute__((destructor)) static void at_exit(void)
{
	if (process != getpid())
		return;
	check_regions("exit");
	if (faults > 0)
		_exit(99);
}

/* ---- entering ---- */

/* The context that is current, with the mutex held; or NULL, *error, and without. */
static struct context *begin(int *error, const char *name, bool disturbs)
{
	pthread_mutex_lock(&mutex);
	*error = OK;
	if (process == 0)
		*error = NOT_INITIALIZED;
	else if (process != getpid()) {
		fault("%s in a child of the process that began", name);
		*error = NOT_INITIALIZED;
	} else if (depth == 0 || !stack[depth - 1]) {
		fault("%s without a current context", name);
		*error = INVALID_CONTEXT;
	} else if (disturbs && captures > 0 && capture_mode != RELAXED) {
		spoiled = 1;
		*error = CAPTURE_UNSUPPORTED;
	}
	if (*error == OK)
		return stack[depth - 1];
	pthread_mutex_unlock(&mutex);
	return NULL;
}

static int end(int error)
{
	pthread_mutex_unlock(&mutex);
	return error;
}

/* ---- streams ---- */

static struct stream *stream_of(struct context *c, void *handle)
{
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used && (handle ? handle == &c->stream[i] : i == 0))
			return &c->stream[i];
	return NULL;
}

static struct op *queue(struct stream *s, int kind)
{
	struct op *op = calloc(1, sizeof(*op));

	op->kind = kind;
	op->due_ns = now_ns() + number("FAKE_CUDA_DELAY_MS", 0) * INT64_C(1000000);
	*s->last = op;
	s->last = &op->next;
	return op;
}

static void copy_now(const struct op *op)
{
	uintptr_t from = (uintptr_t)op->from;

	if (op->staged)
		memcpy((void *)op->to, op->staged, op->bytes);
	else if (!within(host, hosts, from, op->bytes))
		fault("a copy from %#" PRIxPTR ", which was unregistered while the copy was queued",
			from);
	else if (!mapped(from, op->bytes, false))
		fault("a copy from %#" PRIxPTR ", which was unmapped while the copy was queued",
			from);
	else
		memcpy((void *)op->to, op->from, op->bytes);
}

static void do_one(struct stream *s)
{
	struct op *op = s->first;

	s->busy = true;
	if (op->kind == COPY)
		copy_now(op);
	if (op->kind == RECORD && op->recording == op->event->recording)
		op->event->waits--;
	if (op->kind == HOST) {
		pthread_mutex_unlock(&mutex);
		op->call(op->data);
		pthread_mutex_lock(&mutex);
	}
	s->busy = false;
	s->first = op->next;
	if (!s->first)
		s->last = &s->first;
	free(op->staged);
	free(op);
}

/* @all: waits for what is not due yet. */
static void advance(struct stream *s, bool all)
{
	while (s->first && !s->busy && (all || (!held && now_ns() >= s->first->due_ns))) {
		while (all && now_ns() < s->first->due_ns)
			usleep(200);
		do_one(s);
	}
}

static void advance_all(struct context *c, bool all)
{
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used)
			advance(&c->stream[i], all);
}

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

API int cuDriverGetVersion(int *version)
{
	*version = 13000;
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

API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)attribute, (void)device;
	*value = 0;
	return OK;
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

	if (!begin(&error, "cuMemHostRegister", true))
		return error;
	check_regions("cuMemHostRegister");
	if (fails && ++registrations >= fails)
		return end(OUT_OF_MEMORY);
	if (begin_at % PAGE || bytes % PAGE || bytes == 0 || bytes > CHUNK || flags != 3) {
		fault("cuMemHostRegister(%p, %zu, %u): not in whole pages, of 1 GiB at most, "
		      "PORTABLE and "
		      "DEVICEMAP",
			at, bytes, flags);
		return end(INVALID_VALUE);
	}
	if (find(host, hosts, begin_at, bytes))
		return end(ALREADY_REGISTERED);

	unsigned long inode = mapped(begin_at, bytes, true);

	if (!inode || hosts == REGIONS)
		return end(INVALID_VALUE);
	host[hosts++] = (struct region){begin_at, bytes, inode};
	return end(OK);
}

API int cuMemHostUnregister(void *at)
{
	int error;

	if (!begin(&error, "cuMemHostUnregister", true))
		return error;
	check_regions("cuMemHostUnregister");
	for (int i = 0; i < hosts; i++)
		if (host[i].at == (uintptr_t)at) {
			host[i] = host[--hosts];
			return end(OK);
		}
	return end(NOT_REGISTERED);
}

API int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
	int error;

	if (!begin(&error, "cuMemAlloc", true))
		return error;

	void *m = memories < REGIONS ? calloc(1, bytes) : NULL;

	if (!m)
		return end(OUT_OF_MEMORY);
	memory[memories++] = (struct region){(uintptr_t)m, bytes, 1};
	*at = (uintptr_t)m;
	return end(OK);
}

API int cuMemFree_v2(uint64_t at)
{
	int error;

	if (!begin(&error, "cuMemFree", true))
		return error;
	for (int i = 0; i < memories; i++)
		if (memory[i].at == at) {
			memory[i] = memory[--memories];
			free((void *)at);
			return end(OK);
		}
	return end(INVALID_VALUE);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream)
{
	int error;
	struct context *c = begin(&error, "cuMemcpyHtoDAsync", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (!s) {
		fault("a copy on a stream of another context");
		return end(INVALID_HANDLE);
	}
	if (!within(memory, memories, to, bytes) && !number("FAKE_CUDA_ANY_MEMORY", 0)) {
		fault("a copy to %#" PRIx64 ", which is not in the device's memory", to);
		return end(INVALID_VALUE);
	}
	if (s->capturing) {
		fault("a copy became part of a graph");
		return end(OK);
	}

	struct op *op = queue(s, COPY);

	op->to = to;
	op->from = from;
	op->bytes = bytes;
	if (!within(host, hosts, (uintptr_t)from, bytes)) {
		op->staged = malloc(bytes);
		memcpy(op->staged, from, bytes);
	}
	return end(OK);
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
	int error;

	if (!begin(&error, "cuMemcpyDtoH", true))
		return error;
	memcpy(to, (void *)from, bytes);
	return end(OK);
}

/* ---- streams and events ---- */

API int cuStreamCreate(void **stream, unsigned flags)
{
	int error;
	struct context *c = begin(&error, "cuStreamCreate", false);

	(void)flags;
	if (!c)
		return error;
	for (int i = 1; i < STREAMS; i++)
		if (!c->stream[i].used) {
			c->stream[i].used = true;
			*stream = &c->stream[i];
			return end(OK);
		}
	return end(OUT_OF_MEMORY);
}

API int cuStreamIsCapturing(void *stream, int *status)
{
	int error;
	struct context *c = begin(&error, "cuStreamIsCapturing", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	*status = s && s->capturing;
	return end(s ? OK : INVALID_HANDLE);
}

API int cuStreamSynchronize(void *stream)
{
	int error;
	struct context *c = begin(&error, "cuStreamSynchronize", true);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (s)
		advance(s, true);
	return end(s ? OK : INVALID_HANDLE);
}

/* What takes in the whole context conflicts with any capture in it, in whatever mode, and ends it.
 */
static bool conflicts(void)
{
	if (captures > 0)
		spoiled = 1;
	return captures > 0;
}

API int cuCtxSynchronize(void)
{
	int error;
	struct context *c = begin(&error, "cuCtxSynchronize", true);

	if (!c)
		return error;
	if (conflicts())
		return end(CAPTURE_UNSUPPORTED);
	advance_all(c, true);
	return end(OK);
}

API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
	int error;
	struct context *c = begin(&error, "cuLaunchHostFunc", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (!s)
		return end(INVALID_HANDLE);

	struct op *op = queue(s, HOST);

	op->call = call;
	op->data = data;
	return end(OK);
}

API int cuEventCreate(void **event, unsigned flags)
{
	int error;
	struct context *c = begin(&error, "cuEventCreate", false);

	(void)flags;
	if (!c)
		return error;

	struct event *e = calloc(1, sizeof(*e));

	e->context = c;
	*event = e;
	return end(OK);
}

API int cuEventDestroy_v2(void *event)
{
	int error;

	if (!begin(&error, "cuEventDestroy", false))
		return error;
	if (((struct event *)event)->waits)
		fault("an event was destroyed before its time");
	free(event);
	return end(OK);
}

static void record(struct event *e, struct stream *s)
{
	struct op *op = queue(s, RECORD);

	e->waits++;
	op->event = e;
	op->recording = e->recording;
}

API int cuEventRecord(void *event, void *stream)
{
	int error;
	struct context *c = begin(&error, "cuEventRecord", false);

	if (!c)
		return error;

	struct event *e = event;
	struct stream *s = stream_of(c, stream);

	if (!s || e->context != c) {
		fault("an event and a stream of different contexts");
		return end(INVALID_HANDLE);
	}
	e->recording++;
	e->waits = 0;
	record(e, s);
	return end(OK);
}

API int cuCtxRecordEvent(void *context, void *event)
{
	int error;

	if (!begin(&error, "cuCtxRecordEvent", false))
		return error;
	if (number("FAKE_CUDA_NO_RECORD", 0))
		return end(NOT_SUPPORTED);
	if (conflicts())
		return end(CAPTURE_UNSUPPORTED);

	struct context *c = context;
	struct event *e = event;

	e->recording++;
	e->waits = 0;
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used && c->stream[i].first)
			record(e, &c->stream[i]);
	return end(OK);
}

API int cuEventQuery(void *event)
{
	int error;
	struct context *c = begin(&error, "cuEventQuery", true);

	if (!c)
		return error;
	advance_all(c, false);
	return end(((struct event *)event)->waits ? NOT_READY : OK);
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

API int fakeIsRegistered(const void *at)
{
	return within(host, hosts, (uintptr_t)at, 1);
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
