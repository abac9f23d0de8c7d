/*
 * long-life SOCKET STREAM POSITION SECONDS BATCHES: a trainer that takes batches at full speed.
 *
 * Each batch is checked: its position, its number, where its rows come from, and its tokens. The
 * stream has one dataset without shuffling, whose token number i is i mod 50000, and windows of one
 * token. Ends after SECONDS or BATCHES. Prints a line of JSON every 0.2 s, and one at the end.
 */
#include "client/lib/tokend.h"

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BETWEEN_CLOCKS = 4096, REPORTS_PER_S = 5 };

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void equal(const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		errx(1, "%s: %" PRIu64 " instead of %" PRIu64, what, got, want);
}

/* @number: of the batch; @begin: position of the first; @windows: in the dataset. */
static void check(const struct tokend_batch *b, uint64_t number, uint64_t begin, uint64_t windows)
{
	uint64_t position = begin + number * b->rows;
	const uint16_t *tokens = b->tokens;

	equal("number", b->number, number);
	equal("position", b->position, position);
	equal("next", b->next, position + b->rows);
	for (uint32_t i = 0; i < b->rows; i++) {
		const struct tokend_row *row = &b->row[i];

		equal("row's position", row->position, position + i);
		equal("epoch", row->epoch, (position + i) / windows);
		equal("window", row->window, (position + i) % windows);
		equal("token", tokens[i], row->offset % 50000);
	}
}

static void report(struct tokend *t, uint64_t batches, double seconds)
{
	struct tokend_shape shape;

	tokend_shape(t, &shape);
	printf("{\"batches\": %" PRIu64 ", \"position\": %" PRIu64
	       ", \"seconds\": %.3f, \"lost_wakes\": %" PRIu64 ", \"reattached\": %" PRIu64 "}\n",
		batches, tokend_position(t), seconds, shape.lost_wakes, shape.reattached);
	fflush(stdout);
}

static uint64_t run(struct tokend *t, uint64_t begin, double seconds, uint64_t most)
{
	double from = now_s(), due = 0, now = 0;
	struct tokend_batch batch;
	uint64_t n = 0, windows = strtoull(getenv("WINDOWS"), NULL, 10);

	while (n < most && now < seconds) {
		int r = tokend_next(t, &batch);

		if (r != 1)
			errx(1, "%s", r ? tokend_why(t) : "the stream ended");
		check(&batch, n++, begin, windows);
		tokend_release(t, &batch);
		if (n % BETWEEN_CLOCKS)
			continue;
		now = now_s() - from;
		if (now >= due) {
			report(t, n, now);
			due = now + 1.0 / REPORTS_PER_S;
		}
	}
	report(t, n, now_s() - from);
	return n;
}

int main(int argc, char **argv)
{
	struct tokend_options options = {.size = sizeof(options),
		.world = 1,
		.micro_batch = 1,
		.slots = 1024,
		.start_at_position = 1,
		.connect_ms = 5000};
	struct tokend *t;
	char why[1500];

	if (argc != 6 || !getenv("WINDOWS"))
		errx(2, "usage: WINDOWS=N long-life SOCKET STREAM POSITION SECONDS BATCHES");
	options.socket = argv[1];
	options.stream = argv[2];
	options.position = strtoull(argv[3], NULL, 10);
	if (tokend_attach(&t, &options, why, sizeof(why)) < 0)
		errx(1, "%s", why);

	uint64_t n = run(t, options.position, strtod(argv[4], NULL), strtoull(argv[5], NULL, 10));

	equal("position at the end", tokend_position(t), options.position + n);
	tokend_detach(t);
	return 0;
}
