/*
 * A trainer that names a config and no socket. Writes the tokens of its rows to a file, and the
 * position of each batch to stdout. If a daemon cannot be started, prints why, and tries again when
 * a line comes from stdin.
 */
#include "client/lib/tokend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 2 };

static int fail(int code, const char *why)
{
	fprintf(stderr, "%d %s\n", code, why);
	return 1;
}

static int print(void *context, const char *line)
{
	(void)context;
	fprintf(stderr, "%s\n", line);
	return 0;
}

static int train(struct tokend *t, uint64_t batches, FILE *rows)
{
	struct tokend_batch b;
	char line[16];

	for (uint64_t i = 0; i < batches; i++) {
		int r = tokend_next(t, &b);

		while (r == TOKEND_ESTART && fail(r, tokend_why(t)) &&
			fgets(line, sizeof(line), stdin))
			r = tokend_next(t, &b);
		if (r != 1)
			return fail(r, tokend_why(t));
		fwrite(b.tokens, b.token_bytes, (size_t)b.rows * b.window_tokens, rows);
		tokend_release(t, &b);
		printf("%" PRIu64 "\n", b.position);
		fflush(stdout);
		usleep(1000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char why[1024];
	struct tokend *t;
	struct tokend_options o = {.size = sizeof(o),
		.stream = "train",
		.micro_batch = ROWS,
		.slots = 4,
		.deadline_ms = 30000,
		.warn = print};

	if (argc != 6)
		return fail(2, "usage: config-trainer CONFIG RANK WORLD BATCHES FILE");
	o.config = argv[1];
	o.rank = strtoull(argv[2], NULL, 10);
	o.world = strtoull(argv[3], NULL, 10);

	FILE *rows = fopen(argv[5], "w");
	int r = rows ? tokend_attach(&t, &o, why, sizeof(why)) : 2;

	if (r != 0)
		return fail(r, rows ? why : argv[5]);
	printf("%s %s\n", tokend_config(t) ? "private" : "shared", tokend_socket(t));
	r = train(t, strtoull(argv[4], NULL, 10), rows);
	tokend_detach(t);
	return fclose(rows) != 0 || r;
}
