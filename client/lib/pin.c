#include "client/lib/pin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { /* from cuda.h, which is not needed to build this */
	SUCCESS = 0,
	NOT_READY = 600,
	CAPTURE_FIRST = 900, /* errors of a capture, not of the queried work */
	CAPTURE_LAST = 908,
	REGISTER_PORTABLE = 1,
	REGISTER_DEVICEMAP = 2,
	EVENT_DISABLE_TIMING = 2,
	CAPTURE_RELAXED = 2,
};

enum {
	DRAIN_MS = 10000, /* limit of waiting for copies to end */
	TURN_MS = 10000,  /* limit of waiting for other trainers to register */
};

struct driver {
	int (*init)(unsigned flags);
	int (*error_name)(int error, const char **name);
	int (*device_get)(int *device, int ordinal);
	int (*device_count)(int *count);
	int (*current)(void **context);
	int (*current_device)(int *device);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*primary_state)(int device, unsigned *flags, int *active);
	int (*primary_retain)(void **context, int device);
	int (*primary_release)(int device);
	int (*host_register)(void *at, size_t bytes, unsigned flags);
	int (*host_unregister)(void *at);
	int (*copy)(uint64_t to, const void *from, size_t bytes, void *stream);
	int (*event_create)(void **event, unsigned flags);
	int (*event_record)(void *event, void *stream);
	int (*event_query)(void *event);
	int (*event_destroy)(void *event);
	int (*synchronize)(void);
	int (*stream_synchronize)(void *stream);
	/* NULL in older drivers */
	int (*capture_mode)(int *mode);
	int (*capturing)(void *stream, int *status);
	int (*record_context)(void *context, void *event);
};

struct pin {
	struct driver cu;
	void *context;
	int device;
	bool retained;
	bool stuck; /* memory could not be unregistered: the context must stay */
};

struct copies {
	struct pin *pin;
	const struct ring *ring;
	void **event;	 /* [slots], by index of the slot; made when first needed */
	uint64_t *queue; /* [slots]: numbers of slots whose copy has begun, oldest at `first` */
	bool *settling;	 /* [slots]: without an event; needs a sync of the context */
	uint32_t slots, first, n;
	uint64_t registered; /* bytes, from the first slot on */
};

/* ---- the driver ---- */

#define REQUIRED(member, symbol)                                                                   \
	{                                                                                          \
		offsetof(struct driver, member), symbol, true                                      \
	}
#define OPTIONAL(member, symbol)                                                                   \
	{                                                                                          \
		offsetof(struct driver, member), symbol, false                                     \
	}

static const struct {
	size_t at;
	const char *symbol;
	bool required;
} symbols[] = {
	REQUIRED(init, "cuInit"),
	REQUIRED(error_name, "cuGetErrorName"),
	REQUIRED(device_get, "cuDeviceGet"),
	REQUIRED(device_count, "cuDeviceGetCount"),
	REQUIRED(current, "cuCtxGetCurrent"),
	REQUIRED(current_device, "cuCtxGetDevice"),
	REQUIRED(push, "cuCtxPushCurrent_v2"),
	REQUIRED(pop, "cuCtxPopCurrent_v2"),
	REQUIRED(primary_state, "cuDevicePrimaryCtxGetState"),
	REQUIRED(primary_retain, "cuDevicePrimaryCtxRetain"),
	REQUIRED(primary_release, "cuDevicePrimaryCtxRelease_v2"),
	REQUIRED(host_register, "cuMemHostRegister_v2"),
	REQUIRED(host_unregister, "cuMemHostUnregister"),
	REQUIRED(copy, "cuMemcpyHtoDAsync_v2"),
	REQUIRED(event_create, "cuEventCreate"),
	REQUIRED(event_record, "cuEventRecord"),
	REQUIRED(event_query, "cuEventQuery"),
	REQUIRED(event_destroy, "cuEventDestroy_v2"),
	REQUIRED(synchronize, "cuCtxSynchronize"),
	REQUIRED(stream_synchronize, "cuStreamSynchronize"),
	OPTIONAL(capture_mode, "cuThreadExchangeStreamCaptureMode"),
	OPTIONAL(capturing, "cuStreamIsCapturing"),
	OPTIONAL(record_context, "cuCtxRecordEvent"),
};

static const char *name_of(const struct driver *cu, int error)
{
	const char *name = NULL;

	return cu->error_name(error, &name) == SUCCESS && name ? name : "an unknown error";
}

static bool cuda_failed(const struct driver *cu, int error, const char *what, struct fault *fault)
{
	return fault_set(
		fault, FAULT_IO, "cuda", "%s failed: %s (%d)", what, name_of(cu, error), error);
}

/* The library is never closed, as the driver starts threads and installs handlers. */
static bool load(struct driver *cu, struct fault *fault)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return fault_set(
			fault, FAULT_IO, "cuda", "no NVIDIA driver on this machine: %s", dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(library, symbols[i].symbol);

		if (!symbol && symbols[i].required)
			return fault_set(fault, FAULT_IO, "cuda",
				"the driver is too old: it has no %s", symbols[i].symbol);
		memcpy((char *)cu + symbols[i].at, &symbol, sizeof(symbol));
	}

	/* The stub library of CUDA toolkits returns 34 here. */
	int error = cu->init(0);

	return error == SUCCESS || cuda_failed(cu, error, "cuInit", fault);
}

/* ---- the context ---- */

static int enter(const struct pin *p, int *mode)
{
	int error = p->cu.push(p->context);

	*mode = CAPTURE_RELAXED;
	if (error == SUCCESS && p->cu.capture_mode)
		p->cu.capture_mode(mode);
	return error;
}

static void leave(const struct pin *p, int mode)
{
	void *ours;

	if (p->cu.capture_mode)
		p->cu.capture_mode(&mode);
	p->cu.pop(&ours);
}

static int find_active(const struct driver *cu)
{
	int count = 0, device, active = 0;
	unsigned flags;

	if (cu->device_count(&count) != SUCCESS)
		return -1;
	for (int i = 0; i < count; i++)
		if (cu->device_get(&device, i) == SUCCESS &&
			cu->primary_state(device, &flags, &active) == SUCCESS && active)
			return i;
	return -1;
}

static bool use_primary(struct pin *p, int ordinal, struct fault *fault)
{
	int device, error = p->cu.device_get(&device, ordinal);

	if (error != SUCCESS)
		return cuda_failed(&p->cu, error, "cuDeviceGet", fault);
	p->device = device;
	if (p->context)
		return true;
	error = p->cu.primary_retain(&p->context, device);
	if (error != SUCCESS)
		return cuda_failed(&p->cu, error, "cuDevicePrimaryCtxRetain", fault);
	p->retained = true;
	return true;
}

static bool choose_context(struct pin *p, int ordinal, struct fault *fault)
{
	void *current = NULL;
	int its = -1, wanted;

	if (p->cu.current(&current) == SUCCESS && current &&
		p->cu.current_device(&its) == SUCCESS &&
		(ordinal < 0 || (p->cu.device_get(&wanted, ordinal) == SUCCESS && wanted == its))) {
		p->context = current;
		p->device = its;
		return true;
	}
	if (ordinal < 0)
		ordinal = find_active(&p->cu);
	if (ordinal < 0)
		return fault_set(fault, FAULT_ARGUMENT, "device",
			"no CUDA context is current or active; set device");
	return use_primary(p, ordinal, fault);
}

struct pin *pin_open(int device, struct fault *fault)
{
	struct pin *p = calloc(1, sizeof(*p));

	if (!p) {
		fault_memory(fault);
		return NULL;
	}
	if (load(&p->cu, fault) && choose_context(p, device, fault))
		return p;
	free(p);
	return NULL;
}

void pin_close(struct pin *p)
{
	if (!p || p->stuck)
		return;
	if (p->retained)
		p->cu.primary_release(p->device);
	free(p);
}

int pin_device(const struct pin *p)
{
	return p->device;
}

/* ---- registering ---- */

static void nap(void)
{
	const struct timespec pause = {0, 1000000};

	nanosleep(&pause, NULL);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* A lock that ends with its process and leaves no file. -1: register without it. */
static int begin_turn(const char *socket)
{
	const char *slash = strrchr(socket, '/');
	int64_t until = now_ms() + TURN_MS;
	char *directory = slash ? strndup(socket, (size_t)(slash - socket) + 1) : strdup(".");
	int fd = directory ? open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	free(directory);
	while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
		if ((errno != EWOULDBLOCK && errno != EINTR) || now_ms() > until) {
			close(fd);
			return -1;
		}
		nap();
	}
	return fd;
}

/* Unlocks before it closes: a child that another thread forked also has the descriptor. */
static void end_turn(int fd)
{
	if (fd < 0)
		return;
	flock(fd, LOCK_UN);
	close(fd);
}

static uint64_t chunk_bytes(const struct copies *c, uint64_t at)
{
	uint64_t left = c->ring->geometry.control_at - at;

	return left < LIMIT_CHUNK_BYTES ? left : LIMIT_CHUNK_BYTES;
}

static void unregister(struct copies *c)
{
	for (uint64_t at = 0; at < c->registered; at += LIMIT_CHUNK_BYTES)
		c->pin->cu.host_unregister(c->ring->data + at);
	c->registered = 0;
}

static int register_all(struct copies *c)
{
	const uint64_t end = c->ring->geometry.control_at;
	int error = SUCCESS;

	while (error == SUCCESS && c->registered < end) {
		uint64_t bytes = chunk_bytes(c, c->registered);

		error = c->pin->cu.host_register(c->ring->data + c->registered, bytes,
			REGISTER_PORTABLE | REGISTER_DEVICEMAP);
		if (error == SUCCESS)
			c->registered += bytes;
	}
	if (error != SUCCESS)
		unregister(c);
	return error;
}

bool copies_register(struct copies *c, const char *socket, struct fault *fault)
{
	int mode, error = enter(c->pin, &mode);

	if (error != SUCCESS)
		return cuda_failed(&c->pin->cu, error, "cuCtxPushCurrent", fault);
	if (c->registered == 0) {
		int turn = begin_turn(socket);

		error = register_all(c);
		end_turn(turn);
	}
	leave(c->pin, mode);
	if (error == SUCCESS)
		return true;
	fault_set(fault, FAULT_MEMORY, "pin",
		"the ring of %" PRIu64
		" bytes cannot be registered with the GPU's driver: %s (%d); copies from pageable "
		"memory are slower; allow this machine or container to pin memory",
		c->ring->geometry.control_at, name_of(&c->pin->cu, error), error);
	return false;
}

uint64_t copies_registered(const struct copies *c)
{
	return c->registered;
}

/* ---- the queue ---- */

struct copies *copies_new(struct pin *p, const struct ring *ring)
{
	uint32_t slots = ring->geometry.slots;
	struct copies *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	*c = (struct copies){.pin = p, .ring = ring, .slots = slots};
	c->event = calloc(slots, sizeof(*c->event));
	c->queue = calloc(slots, sizeof(*c->queue));
	c->settling = calloc(slots, sizeof(*c->settling));
	if (c->event && c->queue && c->settling)
		return c;
	copies_forget(c);
	return NULL;
}

void copies_forget(struct copies *c)
{
	if (!c)
		return;
	free(c->event);
	free(c->queue);
	free(c->settling);
	free(c);
}

static void **event_of(const struct copies *c, uint64_t s)
{
	return &c->event[s % c->slots];
}

static int need_event(struct copies *c, uint64_t s)
{
	void **event = event_of(c, s);

	return *event ? SUCCESS : c->pin->cu.event_create(event, EVENT_DISABLE_TIMING);
}

static void push(struct copies *c, uint64_t s, bool settling)
{
	c->queue[(c->first + c->n) % c->slots] = s;
	c->settling[s % c->slots] = settling;
	c->n++;
}

bool copies_none(const struct copies *c)
{
	return c->n == 0;
}

bool copies_has(const struct copies *c, uint64_t s)
{
	for (uint32_t i = 0; i < c->n; i++)
		if (c->queue[(c->first + i) % c->slots] == s)
			return true;
	return false;
}

/* The context must be current. @what: the call that failed. */
static int start(struct copies *c, uint64_t s, uint64_t to, void *stream, const char **what)
{
	const struct driver *cu = &c->pin->cu;
	int error = need_event(c, s);

	*what = "cuEventCreate";
	if (error != SUCCESS)
		return error;
	*what = "cuMemcpyHtoDAsync";
	error = cu->copy(to, ring_slot_data(c->ring, s), c->ring->geometry.slot_bytes, stream);
	if (error != SUCCESS)
		return error;
	*what = "cuEventRecord";
	error = cu->event_record(*event_of(c, s), stream);
	if (error != SUCCESS)
		cu->stream_synchronize(stream); /* without an event, the end is unknown */
	return error;
}

/* A copy in a graph would run again when its slot has other tokens. */
static bool captured(const struct driver *cu, void *stream)
{
	int status = 0;

	return cu->capturing && cu->capturing(stream, &status) == SUCCESS && status != 0;
}

bool copies_start(struct copies *c, uint64_t s, uint64_t to, void *stream, struct fault *fault)
{
	const struct driver *cu = &c->pin->cu;
	const char *what = "cuCtxPushCurrent";
	int mode, error = enter(c->pin, &mode);
	bool graph = false;

	if (error == SUCCESS) {
		graph = captured(cu, stream);
		if (!graph)
			error = start(c, s, to, stream, &what);
		leave(c->pin, mode);
	}
	if (graph)
		return fault_set(fault, FAULT_ARGUMENT, "stream",
			"is being captured into a graph, which would copy this slot again later; "
			"copy on another stream, to a buffer that the graph reads");
	if (error != SUCCESS)
		return cuda_failed(cu, error, what, fault);
	push(c, s, false);
	return true;
}

void copies_settle(struct copies *c, uint64_t s)
{
	const struct driver *cu = &c->pin->cu;
	int mode, error = enter(c->pin, &mode);

	if (error == SUCCESS) {
		error = cu->record_context ? need_event(c, s) : CAPTURE_FIRST;
		if (error == SUCCESS)
			error = cu->record_context(c->pin->context, *event_of(c, s));
		leave(c->pin, mode);
	}
	push(c, s, error != SUCCESS);
}

/* On any other error the context is broken or destroyed, and its work has ended. */
static bool not_yet(int error)
{
	return error == NOT_READY || (error >= CAPTURE_FIRST && error <= CAPTURE_LAST);
}

static bool first_is_over(const struct copies *c)
{
	uint64_t s = c->queue[c->first];
	int mode, error;

	if (c->settling[s % c->slots])
		return false;
	if (!*event_of(c, s)) /* settled by a sync */
		return true;
	if (enter(c->pin, &mode) != SUCCESS)
		return true;
	error = c->pin->cu.event_query(*event_of(c, s));
	leave(c->pin, mode);
	return !not_yet(error);
}

bool copies_over(struct copies *c, uint64_t below, uint64_t *s)
{
	if (c->n == 0 || c->queue[c->first] >= below || !first_is_over(c))
		return false;
	*s = c->queue[c->first];
	c->first = (c->first + 1) % c->slots;
	c->n--;
	return true;
}

void copies_sync(struct copies *c)
{
	int mode, error = SUCCESS;
	bool any = false;

	for (uint32_t i = 0; i < c->slots; i++)
		any |= c->settling[i];
	if (!any)
		return;
	if (enter(c->pin, &mode) == SUCCESS) { /* otherwise the context and its work are gone */
		error = c->pin->cu.synchronize();
		leave(c->pin, mode);
	}
	for (uint32_t i = 0; i < c->slots && !not_yet(error); i++)
		c->settling[i] = false;
}

/* ---- the end ---- */

static bool drain(struct copies *c)
{
	int64_t until = now_ms() + DRAIN_MS;
	uint64_t s;

	for (copies_sync(c); c->n > 0; nap()) {
		while (copies_over(c, UINT64_MAX, &s))
			;
		if (c->n > 0 && now_ms() > until)
			return false;
	}
	return true;
}

bool copies_free(struct copies *c)
{
	int mode;

	if (!c)
		return true;
	if (!drain(c)) {
		c->pin->stuck = true;
		copies_forget(c);
		return false;
	}
	if (enter(c->pin, &mode) == SUCCESS) {
		unregister(c);
		for (uint32_t i = 0; i < c->slots; i++)
			if (c->event[i])
				c->pin->cu.event_destroy(c->event[i]);
		leave(c->pin, mode);
	}
	copies_forget(c);
	return true;
}
