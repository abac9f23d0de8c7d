/* Queries of a trainer: store a checkpoint, get the stream's first cursor. */

#include "client/lib/handle.h"
#include <stdio.h>
#include <string.h>

int tokend_checkpoint(struct tokend *t, const char *tag, char *path, size_t path_bytes)
{
	struct wire checkpoint = {.op = WIRE_CHECKPOINT};
	int r = handle_usable(t);

	if (r < 0)
		return r;
	if (!tag || !wire_name_ok(tag))
		return handle_fail_name(t, "tag", tag ? tag : "");

	int64_t n = tokend_cursor(t, t->saved, LIMIT_CURSOR_BYTES);

	if (n < 0)
		return (int)n;
	wire_set_text(&checkpoint, WIRE_TAG, tag);
	wire_set_bytes(&checkpoint, WIRE_CURSOR, t->saved, (size_t)n);
	r = query(t, &checkpoint, WIRE_SAVED);
	if (r == 0 && path && path_bytes) {
		struct wire_bytes saved = wire_bytes(&t->packet->wire, WIRE_PATH);

		snprintf(path, path_bytes, "%.*s", (int)saved.n, saved.at);
	}
	return r;
}

int64_t tokend_stream(struct tokend *t, void *cursor, size_t capacity)
{
	const struct wire describe = {.op = WIRE_DESCRIBE};
	int r = handle_usable(t);

	if (r == 0)
		r = query(t, &describe, WIRE_DESCRIBED);
	if (r < 0)
		return r;

	struct wire_bytes bytes = wire_bytes(&t->packet->wire, WIRE_CURSOR);

	if (bytes.n > capacity)
		return handle_fail(t, TOKEND_EMEMORY, "capacity",
			"%zu bytes are too few for the cursor; %d are always enough", capacity,
			TOKEND_CURSOR_BYTES);
	memcpy(cursor, bytes.at, bytes.n);
	return bytes.n;
}
