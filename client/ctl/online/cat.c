/*
 * tokctl cat: the smallest trainer there is. It attaches, writes the tokens of its batches to
 * stdout as they lie in the ring, and can leave its cursor in a file: enough to see, diff and
 * checksum what any rank gets.
 */
#include "client/ctl/common/arguments.h"
#include "client/ctl/common/cursor_file.h"
#include "client/ctl/online/commands.h"
#include "client/ctl/online/socket.h"
#include "client/lib/tokend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cat {
	struct tokend_options options;
	uint64_t batches;
	const char *cursor_out, *record;
	char bytes[TOKEND_CURSOR_BYTES];
};

/* A number given as @text for option @name, at most @most. */
static bool number(const char *name, const char *text, bool required, uint64_t most, uint64_t *to)
{
	if (!text && !required)
		return true;
	if (text && ctl_number(text, to) && *to <= most)
		return true;
	if (text)
		ctl_usage("cat", "%s %s: must be a number, at most %" PRIu64, name, text, most);
	else
		ctl_usage("cat", "%s is missing", name);
	return false;
}

/* Where to begin: 0, or the exit status to leave with. */
static int set_start(struct cat *c, const char *start, const char *cursor)
{
	struct cursor read = {0};
	size_t n = 0;

	if (start && cursor)
		return ctl_usage("cat", "--start and --cursor exclude each other");
	if (cursor) {
		if (ctl_cursor_read(&read, cursor, NULL))
			n = cursor_encode(&read, c->bytes, sizeof(c->bytes));
		cursor_free(&read);
		c->options.cursor = c->bytes;
		c->options.cursor_bytes = n;
		return n > 0 ? CTL_OK : CTL_FAILED;
	}
	if (start && ctl_number(start, &c->options.position))
		c->options.start_at_position = 1;
	else if (start && strcmp(start, "begin") != 0)
		c->options.tag = start;
	return CTL_OK;
}

/* 0, or the exit status to leave with. The socket is the caller's to free. */
static int parse(int argc, char **argv, struct cat *c, char **socket_path)
{
	const char *rank = NULL, *world = NULL, *micro_batch = NULL, *batches = NULL,
		   *socket = NULL, *start = NULL, *cursor = NULL;
	const char *run = NULL, *peer = NULL, *slots = NULL, *config = NULL;
	const struct ctl_option options[] = {
		{.name = "rank", .value = &rank},
		{.name = "world", .value = &world},
		{.name = "micro", .value = &micro_batch},
		{.name = "batches", .value = &batches},
		{.name = "socket", .value = &socket},
		{.name = "config", .letter = 'c', .value = &config},
		{.name = "start", .value = &start},
		{.name = "cursor", .value = &cursor},
		{.name = "cursor-out", .value = &c->cursor_out},
		{.name = "record", .value = &c->record},
		{.name = "run", .value = &run},
		{.name = "peer", .value = &peer},
		{.name = "slots", .value = &slots},
	};
	uint64_t rows = 0, peer_number = 0, slot_count = 0;
	int others = ctl_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
	int status;

	if (others < 0)
		return CTL_USAGE;
	if (others != 1)
		return ctl_usage("cat", "name one stream");
	if (!number("--rank", rank, true, UINT64_MAX, &c->options.rank) ||
		!number("--world", world, true, UINT64_MAX, &c->options.world) ||
		!number("--micro", micro_batch, true, UINT32_MAX, &rows) ||
		!number("--batches", batches, false, UINT64_MAX, &c->batches) ||
		!number("--peer", peer, false, UINT32_MAX, &peer_number) ||
		!number("--slots", slots, false, UINT32_MAX, &slot_count))
		return CTL_USAGE;
	status = set_start(c, start, cursor);
	if (status != CTL_OK)
		return status;
	c->options.stream = argv[1];
	c->options.run = run ? run : "tokctl";
	c->options.micro_batch = (uint32_t)rows;
	c->options.peer = (uint32_t)peer_number;
	c->options.slots = (uint32_t)slot_count;
	*socket_path = ctl_socket(socket, config);
	c->options.socket = *socket_path;
	return *socket_path ? CTL_OK : CTL_FAILED;
}

static bool write_all(const char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t done = write(STDOUT_FILENO, bytes, n);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0) {
			ctl_fail("stdout: %s", strerror(errno));
			return false;
		}
		bytes += done;
		n -= (size_t)done;
	}
	return true;
}

static bool copy(struct tokend *t, uint64_t batches)
{
	struct tokend_batch batch;

	for (uint64_t i = 0; i < batches; i++) {
		int got = tokend_next(t, &batch);

		if (got == 0)
			return true;
		if (got < 0) {
			ctl_fail("%s", tokend_why(t));
			return false;
		}
		size_t n = (size_t)batch.rows * batch.window_tokens * batch.token_bytes;
		bool ok = write_all(batch.tokens, n);

		tokend_release(t, &batch);
		if (!ok)
			return false;
	}
	return true;
}

static bool save_cursor(struct tokend *t, struct cat *c)
{
	int64_t n = tokend_cursor(t, c->bytes, sizeof(c->bytes));
	struct cursor cursor = {0};
	struct fault why;
	bool ok;

	if (n < 0) {
		ctl_fail("%s", tokend_why(t));
		return false;
	}
	ok = cursor_decode(&cursor, c->bytes, (size_t)n, &why);
	if (!ok)
		ctl_fail("cursor: %s: %s", why.field, why.text);
	ok = ok && ctl_cursor_write(&cursor, c->cursor_out);
	cursor_free(&cursor);
	return ok;
}

int ctl_cat(int argc, char **argv)
{
	static struct cat c = {.options = {.size = sizeof(c.options)}, .batches = UINT64_MAX};
	char why[1500];
	char *socket = NULL;
	struct tokend *t;
	int status = parse(argc, argv, &c, &socket);
	bool ok;

	if (status != CTL_OK)
		return status;
	if (tokend_attach(&t, &c.options, why, sizeof(why)) < 0) {
		free(socket);
		return ctl_fail("%s", why);
	}
	ok = !c.record || tokend_record(t, c.record) == 0;
	if (!ok)
		ctl_fail("%s", tokend_why(t));
	ok = ok && copy(t, c.batches);
	if (c.cursor_out) /* also after a failure: it says where to go on */
		ok = save_cursor(t, &c) && ok;
	if (c.record && tokend_record(t, NULL) < 0)
		ok = ctl_fail("%s", tokend_why(t)) == CTL_OK;
	tokend_detach(t);
	free(socket);
	return ok ? CTL_OK : CTL_FAILED;
}
