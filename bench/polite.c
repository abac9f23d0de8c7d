/*
 * bench-polite SOCKET STREAM SECONDS [PEER RATE]: a trainer that takes batches of 8 rows as fast as
 * they come, or as peer PEER of rank 0, RATE of them per second.
 * Prints one line of JSON: batches per second, and percentiles of the wait for a batch in
 * microseconds.
 */
#include "client/lib/tokend.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 256, WARM_UP_US = 300000, SAMPLES = 1 << 22 };

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static double take(struct tokend *t)
{
	struct tokend_batch batch;
	double from = now_us(), took;

	if (tokend_next(t, &batch) != 1) {
		fprintf(stderr, "bench-polite: %s\n", tokend_why(t));
		exit(1);
	}
	took = now_us() - from;
	tokend_release(t, &batch);
	return took;
}

/* Until batch @n of @rate per second is due. */
static void rest(double from, int n, double rate)
{
	double us = rate > 0 ? from + n / rate * 1e6 - now_us() : 0;

	if (us > 0)
		usleep((unsigned)us);
}

int main(int argc, char **argv)
{
	static float wait[SAMPLES];
	struct tokend_options options = {.size = sizeof(options),
		.run = "polite",
		.world = 1,
		.micro_batch = 8,
		.connect_ms = 5000};
	struct tokend *t;
	char why[1500];
	double from, until;
	int n = 0;

	if (argc != 4 && argc != 6) {
		fprintf(stderr, "usage: bench-polite SOCKET STREAM SECONDS [PEER RATE]\n");
		return 2;
	}
	options.socket = argv[1];
	options.stream = argv[2];
	if (argc == 6)
		options.peer = strtoull(argv[4], NULL, 10);
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0) {
		fprintf(stderr, "bench-polite: %s\n", why);
		return 1;
	}
	from = now_us();
	for (int i = 0; i < WARM_UP && now_us() < from + WARM_UP_US; i++)
		take(t);
	from = now_us();
	until = from + atof(argv[3]) * 1e6;
	while (n < SAMPLES && (n == 0 || now_us() < until)) {
		wait[n++] = (float)take(t);
		rest(from, n, argc == 6 ? atof(argv[5]) : 0);
	}
	double wall = now_us() - from;

	qsort(wait, (size_t)n, sizeof(wait[0]), by_value);
	printf("{\"rate\": %.1f, \"p50\": %.2f, \"p99\": %.1f, \"p999\": %.1f, \"most\": %.1f}\n",
		n / wall * 1e6, wait[n / 2], wait[n - 1 - n / 100], wait[n - 1 - n / 1000],
		wait[n - 1]);
	tokend_detach(t);
	return 0;
}
