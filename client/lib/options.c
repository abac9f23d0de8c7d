#include "client/lib/options.h"

#include "proto/wire.h"

#include <string.h>

enum { TAG_BYTES = 2 * LIMIT_NAME_BYTES + 8 }; /* RUN/TAG.former, the longest valid tag */

bool options_read(struct tokend_options *o, const struct tokend_options *given)
{
	const char *bytes = (const char *)given;

	memset(o, 0, sizeof(*o));
	if (given->size <
		offsetof(struct tokend_options, start_at_position) + sizeof(o->start_at_position))
		return false;
	memcpy(o, given, given->size < sizeof(*o) ? given->size : sizeof(*o));
	for (size_t i = sizeof(*o); i < given->size; i++)
		if (bytes[i] != 0)
			return false;
	return true;
}

int options_check(struct tokend *t, const struct tokend_options *o)
{
	int starts = (o->cursor != NULL) + (o->tag != NULL) + (o->start_at_position != 0);

	if (!o->stream)
		return handle_fail(t, TOKEND_EARGUMENT, "stream",
			"is missing; name a stream of the daemon's config");
	if (!wire_name_ok(o->stream))
		return handle_fail_name(t, "stream", o->stream);
	if (o->run && !wire_name_ok(o->run))
		return handle_fail_name(t, "run", o->run);
	if (o->strict && !o->run)
		return handle_fail(t, TOKEND_EARGUMENT, "strict",
			"needs a run, as all unnamed jobs share run default; set run");
	if (starts > 1)
		return handle_fail(t, TOKEND_EARGUMENT, "start",
			"%d of cursor, tag and position are set; set one", starts);
	if (o->cursor && (o->cursor_bytes == 0 || o->cursor_bytes > LIMIT_CURSOR_BYTES))
		return handle_fail(t, TOKEND_EARGUMENT, "cursor", "%zu bytes; a cursor has 1 to %d",
			o->cursor_bytes, LIMIT_CURSOR_BYTES);
	if (o->tag && strlen(o->tag) > TAG_BYTES)
		return handle_fail(t, TOKEND_EARGUMENT, "tag",
			"%zu bytes; TAG or RUN/TAG has at most %d", strlen(o->tag), TAG_BYTES);
	if (o->slots > LIMIT_SLOTS)
		return handle_fail(t, TOKEND_EARGUMENT, "slots", "%u; must be at most %d", o->slots,
			LIMIT_SLOTS);
	return 0;
}
