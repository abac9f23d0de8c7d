/*
 * pin-trainer SOCKET SCENARIO: a trainer whose GPU is the fake libcuda.so.1. Writes the batches
 * that arrived "on the device" to stdout, for test_pin.py to compare with the shards. Exit status
 * 0: all checks passed.
 */
#include "client/lib/tokend.h"
#include "tests/gpu/fake_cuda.h"

#include <dlfcn.h>
#include <err.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 40, MICRO = 4 };

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			errx(1, "line %d: check failed: %s (%s)", __LINE__, #condition,            \
				t ? tokend_why(t) : "");                                           \
	} while (0)

static struct tokend *t;
static size_t slot_bytes;
static void *library, *context, *stream;
static uint64_t buffer[2]; /* on the device */
static char *arrived;	   /* [batches][slot_bytes] in the order of arrival */
static int batches;

/* A function of the fake library with these argument types. */
#define CU(name, ...) ((int (*)(__VA_ARGS__))symbol(#name))

static void *symbol(const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		errx(1, "libcuda has no %s", name);
	return found;
}

static void hold(int on)
{
	CU(fakeHold, int)(on);
}

static int pending(void)
{
	return CU(fakePending, void)();
}

static int registered(void)
{
	return CU(fakeRegistered, void)();
}

static void make_context(void)
{
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library)
		errx(1, "%s", dlerror());
	if (CU(cuInit, unsigned)(0) != 0 ||
		CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 0) != 0 ||
		CU(cuCtxSetCurrent, void *)(context) != 0 ||
		CU(cuStreamCreate, void **, unsigned)(&stream, 1) != 0)
		errx(1, "no context");
}

/* A training step: copies the batch in a buffer to `arrived`. */
struct work {
	uint64_t from;
	char *to;
};

static void keep(void *data)
{
	struct work *w = data;

	memcpy(w->to, (void *)w->from, slot_bytes);
	free(w);
}

static void train(uint64_t from)
{
	struct work *w = malloc(sizeof(*w));

	*w = (struct work){from, arrived + slot_bytes * (size_t)batches++};
	CHECK(CU(cuLaunchHostFunc, void *, void (*)(void *), void *)(stream, keep, w) == 0);
}

static void synchronize(void)
{
	CHECK(CU(cuStreamSynchronize, void *)(stream) == 0);
}

static void attach(const char *socket, uint32_t slots)
{
	struct tokend_options options = {.size = sizeof(options),
		.socket = socket,
		.stream = "train",
		.world = 1,
		.micro_batch = MICRO,
		.slots = slots,
		.connect_ms = 5000,
		.deadline_ms = 20000};
	char why[500];

	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		errx(1, "%s", why);
}

static void begin(const char *socket, uint32_t slots)
{
	struct tokend_shape shape;

	make_context();
	attach(socket, slots);
	CHECK(tokend_pin(t, -1) == 0);
	tokend_shape(t, &shape);
	slot_bytes = (size_t)shape.rows * shape.window_tokens * shape.token_bytes;
	arrived = calloc(BATCHES, slot_bytes);
	for (int i = 0; i < 2; i++)
		CHECK(CU(cuMemAlloc_v2, uint64_t *, size_t)(&buffer[i], slot_bytes) == 0);
	CHECK(shape.pinned_bytes > 0 && registered() == 1);
}

static uint64_t copy_next(struct tokend_batch *batch)
{
	uint64_t to = buffer[batch->number % 2];

	CHECK(tokend_copy(t, batch, to, stream) == 0);
	return to;
}

/* One step in the simple order. */
static void step(void)
{
	struct tokend_batch batch;

	CHECK(tokend_peek(t, &batch, 1) == 1);

	uint64_t to = copy_next(&batch);

	CHECK(tokend_next(t, &batch) == 1);
	train(to);
}

static void print_arrived(void)
{
	CHECK(fwrite(arrived, slot_bytes, (size_t)batches, stdout) == (size_t)batches);
	fflush(stdout);
}

static void finish(void)
{
	synchronize();
	if (t)
		tokend_detach(t);
	t = NULL;
	CHECK(registered() == 0 && pending() == 0);
	print_arrived();
	CHECK(CU(fakeFaults, void)() == 0);
}

static void say(const char *word)
{
	fprintf(stderr, "%s\n", word);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- scenarios ---- */

/* The ring has few slots: next() waits for copies. */
static void small(const char *socket)
{
	begin(socket, 2);
	while (batches < BATCHES)
		step();
	finish();
}

/* A control that must arrive wrong: copies without tokend_copy(), the slot released at once. */
static void early(const char *socket)
{
	struct tokend_batch batch;

	begin(socket, 4);
	while (batches < BATCHES) {
		CHECK(tokend_next(t, &batch) == 1);
		CHECK(CU(cuMemcpyHtoDAsync_v2, uint64_t, const void *, size_t, void *)(
			      buffer[batch.number % 2], batch.tokens, slot_bytes, stream) == 0);
		train(buffer[batch.number % 2]);
		tokend_release(t, &batch);
	}
	finish();
}

static void detach(const char *socket)
{
	begin(socket, 4);
	for (int i = 0; i < 3; i++)
		step();
	CHECK(pending() > 0);

	double from = seconds();

	tokend_detach(t);
	t = NULL;
	CHECK(pending() <= 1 &&
		seconds() - from > 0.1); /* FAKE_CUDA_DELAY_MS; the last keep() may be pending */
	finish();
}

/* A GPU that makes no progress: the memory stays mapped and registered. */
static void stuck(const char *socket)
{
	begin(socket, 4);
	hold(1);
	step();
	tokend_detach(t);
	t = NULL;
	CHECK(registered() == 1 && pending() > 0);
	hold(0);
	synchronize();
	print_arrived();
	_exit(0); /* memory left to the GPU looks like a leak */
}

/* Without a driver batches are served as usual. */
static void driverless(const char *socket)
{
	struct tokend_batch batch;

	attach(socket, 4);
	CHECK(tokend_pin(t, -1) == TOKEND_EREFUSED);
	say(tokend_why(t));
	CHECK(tokend_next(t, &batch) == 1);
	CHECK(tokend_copy(t, &batch, 4096, NULL) == TOKEND_EREFUSED);
	tokend_release(t, &batch);
	CHECK(tokend_next(t, &batch) == 1);
	tokend_detach(t);
}

/* The choice of the context, and who releases it. */
static void contexts(const char *socket)
{
	void *none;

	library = dlopen("libcuda.so.1", RTLD_NOW);
	attach(socket, 4);
	CHECK(tokend_pin(t, -1) == TOKEND_EREFUSED && strstr(tokend_why(t), "set device"));
	CHECK(tokend_pin(t, 7) == TOKEND_EREFUSED && strstr(tokend_why(t), "INVALID_DEVICE"));
	CHECK(tokend_pin(t, 1) == 0 && tokend_pin(t, -1) == 0 && registered() == 1);
	CHECK(CU(fakePrimaryRefs, int)(1) == 1 && CU(fakePrimaryRefs, int)(0) == 0);
	CHECK(CU(cuCtxGetCurrent, void **)(&none) == 0 && !none); /* the library's is popped */
	CHECK(tokend_pin(t, 0) == TOKEND_EARGUMENT);
	tokend_detach(t);
	CHECK(CU(fakePrimaryRefs, int)(1) == 0 && registered() == 0);

	/* An active context that is not current in this thread. */
	CHECK(CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 1) == 0);
	attach(socket, 4);
	CHECK(tokend_pin(t, -1) == 0 && CU(fakePrimaryRefs, int)(1) == 2);
	tokend_detach(t);
	CHECK(CU(fakePrimaryRefs, int)(1) == 1);
}

static void forked(const char *socket)
{
	struct tokend_batch batch;
	int status;

	begin(socket, 4);
	hold(1);
	step();
	CHECK(tokend_peek(t, &batch, 1) == 1);

	pid_t child = fork();

	if (child == 0) {
		bool refused = tokend_pin(t, -1) == TOKEND_EFORKED &&
			       tokend_copy(t, &batch, buffer[0], stream) == TOKEND_EFORKED &&
			       tokend_next(t, &batch) == TOKEND_EFORKED;

		tokend_release(t, &batch);
		tokend_detach(t);
		_exit(refused && CU(fakeFaults, void)() == 0 ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	hold(0);
	while (batches < BATCHES)
		step();
	finish();
}

static void refusals(const char *socket)
{
	struct tokend_batch batch, other;

	begin(socket, 4);
	hold(1);
	CHECK(tokend_next(t, &batch) == 1);
	CU(fakeCapture, void *, int)(stream, 1);
	CHECK(tokend_copy(t, &batch, buffer[0], stream) == TOKEND_EARGUMENT &&
		strstr(tokend_why(t), "captured"));
	CU(fakeCapture, void *, int)(stream, 0);
	CHECK(tokend_copy(t, &batch, 4096, stream) == TOKEND_EARGUMENT &&
		strstr(tokend_why(t), "INVALID_VALUE"));
	CHECK(tokend_copy(t, &batch, copy_next(&batch), stream) == TOKEND_EARGUMENT &&
		strstr(tokend_why(t), "already"));
	tokend_release(t, &batch);
	CHECK(strstr(tokend_why(t), "released automatically"));
	CHECK(tokend_next(t, &other) == 1);
	tokend_release(t, &other);
	CHECK(tokend_copy(t, &other, buffer[0], stream) == TOKEND_EARGUMENT &&
		strstr(tokend_why(t), "not held"));
	/* The caller holds all other slots: EAGAIN while the copy is queued, EHELD after it. */
	for (int i = 0; i < 2; i++)
		CHECK(tokend_next(t, &other) == 1);
	CHECK(tokend_try_next(t, &other) == TOKEND_EAGAIN);
	hold(0);
	CHECK(tokend_next(t, &other) == 1 && tokend_next(t, &other) == 1);
	CHECK(tokend_next(t, &other) == TOKEND_EHELD);
	CHECK(CU(fakeFaults, void)() == 1); /* the copy to an invalid address */
	tokend_detach(t);
	_exit(0);
}

/* Reports when it has registered. */
static void turn(const char *socket)
{
	make_context();
	attach(socket, 4);
	say("pinning");
	CHECK(tokend_pin(t, -1) == 0);
	say("pinned");
	tokend_detach(t);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*go)(const char *socket);
	} scenarios[] = {{"small", small}, {"early", early}, {"detach", detach}, {"stuck", stuck},
		{"driverless", driverless}, {"contexts", contexts}, {"forked", forked},
		{"refusals", refusals}, {"turn", turn}};

	for (size_t i = 0; argc == 3 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (strcmp(argv[2], scenarios[i].name) == 0) {
			scenarios[i].go(argv[1]);
			return 0;
		}
	errx(2, "usage: pin-trainer SOCKET SCENARIO");
}
