/*
 * copies-trainer SOCKET SCENARIO: a trainer on the stand-in for CUDA (fake_cuda.c). Writes the
 * batches that arrived "on the device" to stdout, for test_copies.py to compare with the shards.
 * Exit status 0: all checks passed.
 */
#include "client/lib/tokend.h"
#include "tests/gpu/fake_cuda.h"

#include <cuda_runtime.h>
#include <err.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCHES = 40, MICRO = 4, BUFFERS = 4 };

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			errx(1, "line %d: check failed: %s (%s)", __LINE__, #condition,            \
				t ? tokend_why(t) : "");                                           \
	} while (0)
#define CUDA(call) CHECK((call) == cudaSuccess)

/* A batch whose copy may be under way. */
struct copy {
	struct tokend_batch batch;
	cudaEvent_t arrived;
	void *to; /* on the device */
	bool held;
};

static struct tokend *t;
static size_t slot_bytes;
static cudaStream_t stream;
static struct copy copies[BUFFERS];
static char *arrived; /* [batches][slot_bytes] in the order of arrival */
static int batches, rings, gones, gones_with_copies;
static void *ring, *place; /* the current ring; where the next one is to be mapped, or NULL */

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

/* The kernel may map a ring where a former one was: here it does. */
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	if (place && fd >= 0 && (protection & PROT_WRITE)) {
		at = place;
		flags |= MAP_FIXED_NOREPLACE;
	}
	return __real_mmap(at, bytes, protection, flags, fd, offset);
}

static void gone(void *context, void *base, uint64_t bytes)
{
	CHECK(context == &rings && bytes % 4096 == 0);
	gones++;
	gones_with_copies += fakePending() > 0;
	CUDA(cudaStreamSynchronize(stream));
	if (cudaHostUnregister(base) != cudaSuccess)
		cudaGetLastError();
}

/* Returns true if the ring is a new one. */
static bool look_at_ring(void)
{
	uint64_t bytes;
	int r = tokend_memory(t, &ring, &bytes, gone, &rings);

	CHECK(r >= 0);
	if (r == 1 && cudaHostRegister(ring, bytes, cudaHostRegisterPortable) != cudaSuccess)
		cudaGetLastError();
	rings += r;
	return r == 1;
}

static void begin(const char *socket, uint32_t slots)
{
	struct tokend_options options = {.size = sizeof(options),
		.socket = socket,
		.stream = "train",
		.world = 1,
		.micro_batch = MICRO,
		.slots = slots,
		.connect_ms = 5000,
		.deadline_ms = 20000};
	struct tokend_shape shape;
	char why[500];

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		errx(1, "%s", why);
	tokend_shape(t, &shape);
	slot_bytes = (size_t)shape.rows * shape.window_tokens * shape.token_bytes;
	arrived = calloc(BATCHES, slot_bytes);
	for (int i = 0; i < BUFFERS; i++) {
		CUDA(cudaMalloc(&copies[i].to, slot_bytes));
		CUDA(cudaEventCreateWithFlags(&copies[i].arrived, cudaEventDisableTiming));
	}
	CHECK(look_at_ring() && !look_at_ring());
}

/* A training step: copies the batch on the device to `arrived`. */
struct work {
	const void *from;
	char *to;
};

static void keep(void *data)
{
	struct work *w = data;

	memcpy(w->to, w->from, slot_bytes);
	free(w);
}

static void release(struct copy *c)
{
	CUDA(cudaEventSynchronize(c->arrived));
	tokend_release(t, &c->batch);
	c->held = false;
}

/* Takes a batch, copies it and trains on it. Returns true if it is from a new ring. */
static bool step(void)
{
	struct copy *c = &copies[batches % BUFFERS];
	struct work *w = malloc(sizeof(*w));
	bool new;

	if (c->held)
		release(c);
	CHECK(tokend_next(t, &c->batch) == 1);
	c->held = true;
	new = look_at_ring();
	CUDA(cudaMemcpyAsync(c->to, c->batch.tokens, slot_bytes, cudaMemcpyHostToDevice, stream));
	CUDA(cudaEventRecord(c->arrived, stream));
	*w = (struct work){c->to, arrived + slot_bytes * (size_t)batches++};
	CUDA(cudaLaunchHostFunc(stream, keep, w));
	return new;
}

static void finish(void)
{
	if (t)
		tokend_detach(t);
	t = NULL;
	CHECK(gones == rings && fakeRegistered() == 0);
	CUDA(cudaStreamSynchronize(stream));
	CHECK(fwrite(arrived, slot_bytes, (size_t)batches, stdout) == (size_t)batches);
	fflush(stdout);
}

/* ---- scenarios ---- */

static void plain(const char *socket)
{
	begin(socket, BUFFERS + 1);
	while (batches < BATCHES)
		step();
	CHECK(gones == 0);
	finish();
}

/* A control that must arrive wrong: slots are released at once. */
static void early(const char *socket)
{
	begin(socket, 4);
	while (batches < BATCHES) {
		struct copy *c = &copies[batches % BUFFERS];

		step();
		tokend_release(t, &c->batch);
		c->held = false;
	}
	finish();
}

/* Batches are copied when the handle ends. */
static void detach(const char *socket)
{
	begin(socket, BUFFERS);
	for (int i = 0; i < 3; i++)
		step();
	finish();
	CHECK(gones_with_copies == 1);
}

/* The former ring goes when the last batch of it is released, here in a call of release(). */
static void seek(const char *socket)
{
	begin(socket, BUFFERS);
	for (int i = 0; i < 3; i++)
		step();
	CHECK(tokend_seek(t, NULL, 0, 0, 1, MICRO) == 0 && gones == 0);
	while (batches < BATCHES)
		step();
	CHECK(rings == 2 && gones == 1);
	finish();
}

/* Asks the test for a new daemon, and takes batches until its ring comes. */
static void lose_the_daemon(void)
{
	char line[16];

	fprintf(stderr, "kill\n");
	CHECK(fgets(line, sizeof(line), stdin));
	while (!step())
		CHECK(batches < BATCHES);
}

/* Daemons are killed while their rings are copied from; the third ring has the first one's place.
 */
static void killed(const char *socket)
{
	void *first;

	begin(socket, BUFFERS);
	first = ring;
	step();
	fakeHold(1);
	lose_the_daemon();
	CHECK(ring != first && fakePending() > 0 && fakeRegistered() == 2 && gones == 0);
	fakeHold(0);
	for (int i = 0; i < BUFFERS; i++)
		if (copies[i].held)
			release(&copies[i]);
	CHECK(gones == 1 && fakeRegistered() == 1);
	place = first;
	step();
	fakeHold(1);
	lose_the_daemon();
	fakeHold(0);
	CHECK(ring == first && fakeRegistered() == 2);
	while (batches < BATCHES)
		step();
	finish();
}

static void forked(const char *socket)
{
	struct tokend_batch batch;
	uint64_t bytes;
	void *base;
	int status;

	begin(socket, BUFFERS + 1);
	step();

	pid_t child = fork();

	if (child == 0) {
		bool refused = tokend_memory(t, &base, &bytes, gone, NULL) == TOKEND_EFORKED &&
			       tokend_next(t, &batch) == TOKEND_EFORKED;

		tokend_release(t, &copies[0].batch);
		tokend_detach(t);
		_exit(refused && gones == 0 && fakeFaults() == 0 ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(tokend_memory(t, &base, &bytes, NULL, NULL) == TOKEND_EARGUMENT);
	while (batches < BATCHES)
		step();
	finish();
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*go)(const char *socket);
	} scenarios[] = {{"plain", plain}, {"early", early}, {"detach", detach}, {"seek", seek},
		{"killed", killed}, {"forked", forked}};

	for (size_t i = 0; argc == 3 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
		if (strcmp(argv[2], scenarios[i].name) == 0) {
			scenarios[i].go(argv[1]);
			return 0;
		}
	errx(2, "usage: copies-trainer SOCKET SCENARIO");
}
