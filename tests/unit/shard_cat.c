/*
 * shard-cat [-f FORMAT] [-t u16|u32] [-w WINDOW_TOKENS] [-c COLUMN] [-b BUDGET] [-s] FILE…: prints
 * files as tokend reads them. For each file a line of JSON: its facts, all document boundaries, and
 * the width of its tokens. With -s the line is followed by all tokens, raw, in the served width. If
 * a file cannot be read, its line has an "error" instead, and the exit status is 1.
 */
#include "daemon/shard/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AT_ONCE = 1000003 /* tokens; no multiple of anything */, BOUNDARIES = 1000 };

static void put_string(const char *name, const char *text)
{
	printf("\"%s\": \"", name);
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\')
			printf("\\u%04x", (unsigned char)*text);
		else
			putchar(*text);
	putchar('"');
}

static void put_documents(const struct shard *shard)
{
	uint32_t at[BOUNDARIES];
	const char *comma = "";

	printf(", \"boundaries\": [");
	for (uint64_t token = 0; token < shard->facts.tokens;) {
		uint32_t n =
			shard_documents(shard, token, shard->facts.tokens - token, at, BOUNDARIES);

		for (uint32_t i = 0; i < n; i++, comma = ", ")
			printf("%s%" PRIu64, comma, token + at[i]);
		if (n < BOUNDARIES)
			break;
		token += at[n - 1];
	}
	putchar(']');
}

static bool put_tokens(const struct shard *shard, bool show, struct fault *fault)
{
	uint64_t most = shard->facts.tokens < AT_ONCE ? shard->facts.tokens : AT_ONCE;
	char *tokens = malloc(most * shard->facts.token_bytes + 1);
	bool fine = tokens != NULL;

	for (uint64_t token = 0; fine && token < shard->facts.tokens; token += most) {
		uint64_t left = shard->facts.tokens - token, n = left < most ? left : most;

		fine = shard_read(shard, token, n, tokens, fault);
		if (fine && show)
			fwrite(tokens, shard->facts.token_bytes, n, stdout);
	}
	free(tokens);
	return fine;
}

static bool cat(const struct shard_format *format, const struct shard_hint *hint, const char *path,
	bool show)
{
	struct fault fault;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct shard *shard = fd < 0 ? NULL : shard_open(format, path, fd, hint, true, &fault);

	printf("{");
	put_string("path", path);
	bool fine = shard != NULL;

	if (fine) {
		const struct shard_facts *f = &shard->facts;

		printf(", \"format\": \"%s\", \"type\": \"%s\", \"token_bytes\": %" PRIu32
		       ", \"tokens\": %" PRIu64 ", \"sample_tokens\": %" PRIu64
		       ", \"plain\": %s, \"data_at\": %" PRIu64 ", \"frame_bytes\": %" PRIu64
		       ", \"index_bytes\": %" PRIu64 ", \"documents\": ",
			shard->format->name, shard_type_name(f->type), f->token_bytes, f->tokens,
			f->sample_tokens, f->plain ? "true" : "false", f->data_at, f->frame_bytes,
			(uint64_t)f->index_bytes);
		f->documents == SHARD_UNKNOWN ? (void)printf("null, ")
					      : (void)printf("%" PRIu64 ", ", f->documents);
		put_string("note", f->note);
		put_documents(shard);
		fine = show || put_tokens(shard, false, &fault);
	}
	if (!fine) {
		printf(", ");
		put_string("error", fd < 0 ? "cannot be opened" : fault.text);
		printf(", \"errno\": %d", fd < 0 ? errno : fault.error);
	}
	printf("}\n");
	if (fine && show)
		fine = put_tokens(shard, true, &fault);
	shard_close(shard);
	if (fd >= 0)
		close(fd);
	return fine;
}

int main(int argc, char **argv)
{
	struct shard_hint hint = {
		.type = SHARD_U16, .documents = true, .indexes = mds_indexes_new()};
	const struct shard_format *format = NULL;
	bool show = false, fine = true;

	for (int c; (c = getopt(argc, argv, "f:t:w:c:b:s")) != -1;)
		switch (c) {
		case 'f':
			format = shard_format(optarg);
			break;
		case 't':
			hint.has_type = true;
			hint.type = strcmp(optarg, "u32") == 0 ? SHARD_U32 : SHARD_U16;
			break;
		case 'w':
			hint.window_tokens = strtoull(optarg, NULL, 10);
			break;
		case 'c':
			hint.column = optarg;
			break;
		case 'b':
			hint.budget_bytes = strtoull(optarg, NULL, 10);
			break;
		case 's':
			show = true;
			break;
		default:
			return 2;
		}
	for (int i = optind; i < argc; i++)
		fine &= cat(format, &hint, argv[i], show);
	mds_indexes_free(hint.indexes);
	return fine ? 0 : 1;
}
