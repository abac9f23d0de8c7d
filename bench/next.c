/*
 * bench-next SOCKET STREAM POSITION BATCHES [stored|int64 [MICRO_BATCH]]: one trainer in C.
 *
 * Prints one line of JSON, for MICRO_BATCH rows (8): the time from attach to first batch, the cost
 * of a ready next(), and the rate at which it takes batches without reading their tokens. With
 * "stored" it does not measure a ready next(); with "int64" it also widens every batch into one
 * buffer.
 */
#include "client/lib/tokend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 200, READY = 16 };

static double now_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static struct tokend_batch take(struct tokend *t)
{
	struct tokend_batch batch;

	if (tokend_next(t, &batch) != 1) {
		fprintf(stderr, "bench-next: %s\n", tokend_why(t));
		exit(1);
	}
	return batch;
}

/* The median time of a ready next(): lets the ring fill, then takes READY batches without a pause.
 * The clock is read around all of them but the first, which finds cold caches, because reading it
 * takes as long as one of them. */
static double ready_next_ns(struct tokend *t)
{
	static double sample[ROUNDS];
	const struct timespec pause = {0, 2000000};
	struct tokend_batch batch[READY];

	for (int round = 0; round < ROUNDS; round++) {
		nanosleep(&pause, NULL);
		batch[0] = take(t);

		double from = now_s(CLOCK_MONOTONIC);

		for (int i = 1; i < READY; i++)
			batch[i] = take(t);
		sample[round] = (now_s(CLOCK_MONOTONIC) - from) * 1e9 / (READY - 1);
		for (int i = 0; i < READY; i++)
			tokend_release(t, &batch[i]);
	}
	qsort(sample, ROUNDS, sizeof(sample[0]), by_value);
	return sample[ROUNDS / 2];
}

/* Takes @batches, and widens them into @to if it is not NULL. */
static void take_all(struct tokend *t, uint64_t batches, int64_t *to)
{
	struct tokend_shape shape;

	tokend_shape(t, &shape);
	for (uint64_t i = 0; i < batches; i++) {
		struct tokend_batch batch = take(t);

		if (to)
			tokend_widen(to, batch.tokens, (size_t)shape.rows * shape.window_tokens,
				shape.token_bytes);
		tokend_release(t, &batch);
	}
}

int main(int argc, char **argv)
{
	struct tokend_options options = {
		.size = sizeof(options), .world = 1, .micro_batch = 8, .start_at_position = 1};
	struct tokend_shape shape;
	struct tokend_batch batch;
	struct tokend *t;
	char why[1500];
	double from = now_s(CLOCK_MONOTONIC), first, rate = 0, cpu = 0;
	uint64_t batches;
	int64_t *to = NULL;
	int rate_only = argc >= 6;

	if (argc < 5 || argc > 7) {
		fprintf(stderr, "usage: bench-next SOCKET STREAM POSITION BATCHES [stored|int64 "
				"[MICRO_BATCH]]\n");
		return 2;
	}
	options.socket = argv[1];
	options.stream = argv[2];
	options.position = strtoull(argv[3], NULL, 10);
	options.connect_ms = 5000;
	if (argc == 7)
		options.micro_batch = (uint32_t)strtoul(argv[6], NULL, 10);
	batches = strtoull(argv[4], NULL, 10);
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0) {
		fprintf(stderr, "bench-next: %s\n", why);
		return 1;
	}
	batch = take(t);
	first = now_s(CLOCK_MONOTONIC) - from;
	tokend_release(t, &batch);
	tokend_shape(t, &shape);
	if (rate_only && strcmp(argv[5], "int64") == 0)
		to = calloc((size_t)shape.rows * shape.window_tokens, sizeof(*to));
	if (batches > 0) {
		double wall = now_s(CLOCK_MONOTONIC), own = now_s(CLOCK_THREAD_CPUTIME_ID);
		double tokens = (double)batches * shape.rows * shape.window_tokens;

		take_all(t, batches, to);
		rate = tokens / (now_s(CLOCK_MONOTONIC) - wall);
		cpu = (now_s(CLOCK_THREAD_CPUTIME_ID) - own) / tokens * 1e9;
	}
	printf("{\"first_ms\": %.3f, \"ready_ns\": %.0f, \"tokens_s\": %.0f, \"cpu_s_per_1e9\": "
	       "%.3f, "
	       "\"ring_bytes\": %" PRIu64 ", \"lost_wakes\": %" PRIu64 "}\n",
		first * 1e3, batches > 0 && !rate_only ? ready_next_ns(t) : 0, rate, cpu,
		shape.data_bytes, shape.lost_wakes);
	tokend_detach(t);
	free(to);
	return 0;
}
