/*
 * A stand-in for CUDA without a GPU: libcuda.so.1 with what trainers use of the driver and of the
 * runtime. It is stricter than CUDA. It reports calls in a forked child, unaligned,
 * large or overlapping regions, memory that is unmapped while registered, and calls that would
 * invalidate another thread's capture.
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

#include "tests/gpu/include/cuda_runtime.h"

/* cuda.h, which declares them, is not used */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define API	   __attribute__((visibility("default")))
#define FAULT(...) (fprintf(stderr, "fake CUDA: " __VA_ARGS__), fputc('\n', stderr), faults++)

enum {
	OK = cudaSuccess,
	INVALID_VALUE = cudaErrorInvalidValue,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NOT_READY = cudaErrorNotReady,
	NOT_REGISTERED = 713,
	CAPTURE_UNSUPPORTED = 900,
	PAGE = 4096,
	STREAMS = 8,
	REGIONS = 4096,
	RELAXED = 2,
	PIECE = 1 << 30,
};

/* Is over when its stream has done this many operations. */
struct fake_event {
	struct fake_stream *stream;
	uint64_t until;
};

/* A copy, a call of the host, or a wait for an event. */
struct op {
	int64_t due_ns;
	char *to;
	const char *from;
	char *staged; /* copy of unregistered memory, which is read at once */
	size_t bytes;
	void (*call)(void *data);
	void *data;
	struct fake_event wait;
	struct op *next;
};

struct fake_stream {
	struct op *first, *last;
	uint64_t queued, done; /* numbers of operations */
	bool capturing, busy;
};

struct region {
	char *at;
	size_t bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all that follows */
static struct fake_stream streams[STREAMS];		  /* [0]: the default one */
static struct region host[REGIONS], memory[REGIONS];
static int faults, hosts, memories, registrations, captures, spoiled, held, created = 1;
static pid_t process;
static _Thread_local int capture_mode, last_error;

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
	if (last_error)
		FAULT("error %d was not fetched: the next kernel would report it", last_error);
	if (faults > 0)
		_exit(99);
}

/* ---- calls ---- */

/* Locks the mutex; or returns an error. @disturbs: it invalidates captures in other threads. */
static int enter(const char *name, bool disturbs)
{
	pthread_mutex_lock(&mutex);
	if (!process)
		process = getpid();
	if (process == getpid() && !(disturbs && captures > 0))
		return OK;
	if (process == getpid())
		spoiled = 1;
	else
		FAULT("%s in a child of the process that began", name);
	pthread_mutex_unlock(&mutex);
	return process == getpid() ? CAPTURE_UNSUPPORTED : NOT_INITIALIZED;
}

static int leave(int error)
{
	pthread_mutex_unlock(&mutex);
	if (error != OK && error != NOT_READY)
		last_error = error;
	return error;
}

/* Begins a function. */
#define ENTER(disturbs)                                                                            \
	do {                                                                                       \
		int entered = enter(__func__, disturbs);                                           \
                                                                                                   \
		if (entered != OK)                                                                 \
			return entered;                                                            \
	} while (0)
#define IN_STRICT_MODE (capture_mode != RELAXED)

API int cuThreadExchangeStreamCaptureMode(int *mode)
{
	int former = capture_mode;

	capture_mode = *mode;
	*mode = former;
	return OK;
}

API cudaError_t cudaSetDevice(int device)
{
	return device == 0 ? OK : INVALID_VALUE;
}

API cudaError_t cudaGetLastError(void)
{
	int error = last_error;

	last_error = OK;
	return error;
}

API const char *cudaGetErrorString(cudaError_t error)
{
	return error == OUT_OF_MEMORY ? "out of memory" : "an error";
}

/* ---- memory ---- */

API cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
	struct region region = {at, bytes};
	int fails = number("FAKE_CUDA_REGISTER_FAILS");

	ENTER(IN_STRICT_MODE);
	check_regions();
	if (fails && ++registrations >= fails)
		return leave(OUT_OF_MEMORY);
	if ((uintptr_t)at % PAGE || bytes % PAGE || bytes == 0 || bytes > PIECE ||
		!(flags & cudaHostRegisterPortable) || !mapped(&region) ||
		find(host, hosts, at, bytes) || hosts == REGIONS) {
		FAULT("%s(%p, %zu, %u): not whole pages, more than 1 GiB, not portable, not "
		      "mapped, or registered before",
			__func__, at, bytes, flags);
		return leave(INVALID_VALUE);
	}
	host[hosts++] = region;
	return leave(OK);
}

API cudaError_t cudaHostUnregister(void *at)
{
	ENTER(IN_STRICT_MODE);
	check_regions();
	for (int i = 0; i < hosts; i++)
		if (host[i].at == at) {
			host[i] = host[--hosts];
			return leave(OK);
		}
	return leave(NOT_REGISTERED);
}

API cudaError_t cudaMalloc(void **at, size_t bytes)
{
	ENTER(IN_STRICT_MODE);
	*at = memories < REGIONS ? calloc(1, bytes) : NULL;
	if (!*at)
		return leave(OUT_OF_MEMORY);
	memory[memories++] = (struct region){*at, bytes};
	return leave(OK);
}

API cudaError_t cudaFree(void *at)
{
	ENTER(IN_STRICT_MODE);
	for (int i = 0; i < memories; i++)
		if (memory[i].at == at) {
			memory[i] = memory[--memories];
			free(at);
			return leave(OK);
		}
	return leave(at ? INVALID_VALUE : OK);
}

/* ---- streams ---- */

static struct fake_stream *stream_of(struct fake_stream *handle)
{
	return handle ? handle : &streams[0];
}

static void queue(struct fake_stream *s, struct op work)
{
	struct op *op = malloc(sizeof(*op));

	*op = work;
	op->due_ns = now_ns() + number("FAKE_CUDA_DELAY_MS") * INT64_C(1000000);
	if (s->first)
		s->last->next = op;
	else
		s->first = op;
	s->last = op;
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

static bool over(const struct fake_event *e)
{
	return !e->stream || e->stream->done >= e->until;
}

static void do_now(struct op *op)
{
	if (op->call) {
		pthread_mutex_unlock(&mutex);
		op->call(op->data);
		pthread_mutex_lock(&mutex);
	} else if (op->to) {
		copy_now(op);
	}
}

/* Does the due work of a stream, and its first @until operations even if they are not due. */
static void advance(struct fake_stream *s, uint64_t until)
{
	struct op *op;

	while ((op = s->first) && !s->busy &&
		(s->done < until || (!held && now_ns() >= op->due_ns))) {
		while (now_ns() < op->due_ns)
			usleep(200);
		s->busy = true;
		if (op->wait.stream && op->wait.stream != s && !over(&op->wait))
			advance(op->wait.stream, s->done < until ? op->wait.until : 0);
		s->busy = false;
		if (!over(&op->wait))
			return;
		s->busy = true;
		do_now(op);
		s->busy = false;
		s->done++;
		s->first = op->next;
		free(op->staged);
		free(op);
	}
}

static void advance_all(uint64_t until)
{
	for (int i = 0; i < STREAMS; i++)
		advance(&streams[i], until);
}

API cudaError_t cudaMemcpyAsync(
	void *to, const void *from, size_t bytes, int kind, struct fake_stream *stream)
{
	ENTER(false);
	struct op op = {.to = to, .from = from, .bytes = bytes};
	struct fake_stream *s = stream_of(stream);

	if (kind != cudaMemcpyHostToDevice || !within(memory, memories, to, bytes) ||
		s->capturing) {
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

API cudaError_t cudaLaunchHostFunc(struct fake_stream *stream, cudaHostFn_t call, void *data)
{
	ENTER(false);
	queue(stream_of(stream), (struct op){.call = call, .data = data});
	return leave(OK);
}

API cudaError_t cudaStreamCreateWithFlags(struct fake_stream **stream, unsigned flags)
{
	(void)flags;
	ENTER(false);
	if (created == STREAMS)
		return leave(OUT_OF_MEMORY);
	*stream = &streams[created++];
	return leave(OK);
}

API cudaError_t cudaStreamSynchronize(struct fake_stream *stream)
{
	ENTER(IN_STRICT_MODE);
	advance(stream_of(stream), UINT64_MAX);
	return leave(OK);
}

/* Invalidates any capture, in every mode. */
API cudaError_t cudaDeviceSynchronize(void)
{
	ENTER(true);
	advance_all(UINT64_MAX);
	return leave(OK);
}

/* ---- events ---- */

API cudaError_t cudaEventCreateWithFlags(struct fake_event **event, unsigned flags)
{
	(void)flags;
	ENTER(false);
	*event = calloc(1, sizeof(**event));
	return leave(OK);
}

API cudaError_t cudaEventDestroy(struct fake_event *event)
{
	ENTER(false);
	free(event);
	return leave(OK);
}

API cudaError_t cudaEventRecord(struct fake_event *event, struct fake_stream *stream)
{
	ENTER(false);
	event->stream = stream_of(stream);
	event->until = event->stream->queued;
	return leave(OK);
}

API cudaError_t cudaStreamWaitEvent(
	struct fake_stream *stream, struct fake_event *event, unsigned flags)
{
	(void)flags;
	ENTER(false);
	if (!over(event))
		queue(stream_of(stream), (struct op){.wait = *event});
	return leave(OK);
}

API cudaError_t cudaEventQuery(struct fake_event *event)
{
	ENTER(IN_STRICT_MODE);
	advance_all(0);
	return leave(over(event) ? OK : NOT_READY);
}

API cudaError_t cudaEventSynchronize(struct fake_event *event)
{
	ENTER(IN_STRICT_MODE);
	if (!over(event))
		advance(event->stream, event->until);
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

API int fakePending(void)
{
	uint64_t n = 0;

	for (int i = 0; i < STREAMS; i++)
		n += streams[i].queued - streams[i].done;
	return (int)n;
}

API void fakeCapture(void *stream, int on)
{
	((struct fake_stream *)stream)->capturing = on;
	captures += on ? 1 : -1;
}

API int fakeCaptureSpoiled(void)
{
	return spoiled;
}
