/*
 * A trainer without a model: takes batches, carries out an operator's requests (tokctl mix, skip,
 * checkpoint, drain), and stores the cursor.
 *
 *   cc trainer.c $(pkg-config --cflags --libs tokend) -o trainer
 *   ./trainer [STREAM [CONFIG [TAG [STEPS]]]]
 *
 * If tokend was installed with pip: export PKG_CONFIG_PATH=$(python -m tokend --pkgconfigdir)
 *
 * CONFIG is a config file, whose daemon is started if none runs. Without it the node's daemon is
 * used, or the one at $TOKEND_SOCKET. The cursor is stored under the tag "example". Pass it as TAG
 * to resume there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tokend.h>

/* Called after 2, 10 and 60 s of waiting: @line says what for. */
static int warn(void *context, const char *line)
{
	(void)context;
	fprintf(stderr, "trainer: %s\n", line);
	return 0;
}

/*
 * Carries out the operator's pending request, if any. Call it after each step; all ranks of a job
 * must carry out a request at the same step. Returns 1 if the operator asked the job to stop, 0 if
 * not, or an error.
 */
static int control(struct tokend *t)
{
	static struct tokend_request request; /* 64 KiB: too large for some stacks */
	char tag[65] = "example", text[128];
	const char *named;
	int r = tokend_attend(t); /* finds a restarted daemon even while batches are ready */
	int stops, saves;

	if (r < 0 || tokend_request_number(t) == 0)
		return r < 0 ? r : 0;
	r = tokend_request(t, &request);
	if (r < 0 || request.number == 0) /* withdrawn in the meantime */
		return r;
	named = strstr(request.args, "tag ");
	if (named)
		sscanf(named, "tag %64[^\n]", tag);
	stops = strcmp(request.kind, "drain") == 0 || strcmp(request.kind, "rescale") == 0;
	saves = stops || strcmp(request.kind, "checkpoint") == 0;
	/* save the model here too */
	r = saves ? tokend_checkpoint(t, tag, NULL, 0)
		  : tokend_obey(t, request.kind, request.args, NULL);
	if (r < 0) /* nothing was changed, training continues */
		return tokend_answer(t, request.number, TOKEND_FAILED, tokend_why(t));
	snprintf(text, sizeof(text), "done at position %llu",
		(unsigned long long)tokend_position(t));
	r = tokend_answer(t, request.number, TOKEND_DONE, text);
	return r < 0 ? r : stops;
}

int main(int argc, char **argv)
{
	struct tokend_options options;
	long steps = argc > 4 ? atol(argv[4]) : 100, step = 0;
	struct tokend_batch batch;
	struct tokend *t;
	char why[500];
	uint64_t tokens = 0;
	int stop = 0, r;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.stream = argc > 1 ? argv[1] : "train";
	options.config = argc > 2 && argv[2][0] ? argv[2] : NULL;
	options.world = 1;
	options.micro_batch = 8;
	options.tag = argc > 3 && argv[3][0] ? argv[3] : NULL;
	options.warn = warn;
	r = tokend_attach(&t, &options, why, sizeof(why));
	if (r < 0)
		return fprintf(stderr, "trainer: %s\n", why), 1;
	for (; step < steps && !stop && (r = tokend_next(t, &batch)) == 1; step++) {
		/* Forward, backward and optimizer step go here. batch.tokens is
		 * [rows][window_tokens], each of token_bytes. */
		tokens += (uint64_t)batch.rows_valid * batch.window_tokens;
		tokend_release(t, &batch);
		stop = control(t);
	}
	printf("%ld steps, %llu tokens, position %llu\n", step, (unsigned long long)tokens,
		(unsigned long long)tokend_position(t));
	if (r < 0 || stop < 0 || tokend_checkpoint(t, "example", NULL, 0) < 0)
		return fprintf(stderr, "trainer: %s\n", tokend_why(t)), 1;
	tokend_detach(t);
	return 0;
}
