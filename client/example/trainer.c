/*
 * A whole trainer but for the model: takes 100 batches, has the cursor saved, and says how fast
 * tokens came.
 *
 * With the TAG that it saves under, "example", it goes on where it was.
 *
 *   cc trainer.c -ltokend -o trainer && ./trainer [STREAM [SOCKET [TAG]]]
 */
#include "client/lib/tokend.h" /* installed: <tokend.h> */

#include <stdio.h>
#include <time.h>

static double seconds(void)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The daemon is starting, or others hold its memory: said after 2, 10 and 60 s of waiting. */
static int warn(void *context, const char *line)
{
	(void)context;
	fprintf(stderr, "trainer: %s\n", line);
	return 0;
}

int main(int argc, char **argv)
{
	struct tokend_options options = {
		.size = sizeof(options),
		.stream = argc > 1 ? argv[1] : "train",
		.socket = argc > 2 ? argv[2] : NULL,
		.world = 1,
		.micro_batch = 8,
		.tag = argc > 3 ? argv[3] : NULL,
		.warn = warn,
	};
	struct tokend_batch batch;
	struct tokend *t;
	char why[500];
	uint64_t tokens = 0;
	int steps = 0, r = tokend_attach(&t, &options, why, sizeof(why));

	if (r < 0)
		return fprintf(stderr, "trainer: %s\n", why), 1;

	double begin = seconds();

	for (; steps < 100 && (r = tokend_next(t, &batch)) == 1; steps++) {
		/* Forward, backward and step go here: batch.tokens is [rows][window_tokens], of
		 * token_bytes each. */
		tokens += (uint64_t)batch.rows_valid * batch.window_tokens;
		tokend_release(t, &batch);
	}
	printf("%d steps, %.1f M tokens/s\n", steps, (double)tokens / (seconds() - begin) / 1e6);
	if (r < 0 || tokend_checkpoint(t, "example", NULL, 0) < 0)
		return fprintf(stderr, "trainer: %s\n", tokend_why(t)), 1;
	tokend_detach(t);
	return 0;
}
