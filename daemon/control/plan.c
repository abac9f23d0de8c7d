#include "daemon/control/control.h"

#include "daemon/catalog/dataset.h"

#include <inttypes.h>
#include <stdio.h>

struct telling {
	const struct stream *stream;
	void *context;
	plan_teller tell;
};

static void tell_note(void *telling, bool doubt, const char *text)
{
	const struct telling *t = telling;

	t->tell(t->context, t->stream, doubt, text);
}

void plan_tell(const struct stream *s, void *context, plan_teller tell)
{
	const struct cursor *c = &s->begin;
	struct telling telling = {s, context, tell};
	char text[768];
	bool raw = false;

	for (uint32_t d = 0; d < s->config->datasets; d++) {
		raw |= s->dataset[d].format->raw;
		dataset_notes(&s->dataset[d], tell_note, &telling);
	}
	/* Shards that state nothing are believed: at least their ids could be compared. */
	if (raw && !s->config->has_vocab)
		tell(context, s, true,
			"its shards do not state what they hold, and unknown ids cannot be found: "
			"add `vocab: N` to the stream, the number of your tokenizer's ids");
	for (uint32_t d = 0; d < c->datasets; d++) {
		uint64_t position, unserved, most = c->dataset[d].max_epochs;
		int n = snprintf(text, sizeof(text), "%s: max_epochs %" PRIu64 ": ",
			c->dataset[d].name, most);

		if (most == 0)
			continue;
		if (cursor_unserved(c, d, &position, &unserved))
			snprintf(text + n, sizeof(text) - (size_t)n,
				"ends at position %" PRIu64 "; %" PRIu64 " of its %" PRIu64
				" × %" PRIu64 " windows are never served",
				position, unserved, most, c->order[d].windows);
		else
			snprintf(text + n, sizeof(text) - (size_t)n,
				"not reached before the stream ends");
		tell(context, s, false, text);
	}
	if (s->config->steps > 0) {
		snprintf(text, sizeof(text),
			"schedule: %" PRIu32 " steps; %" PRIu32 " changes of the mix in all",
			s->config->steps, c->segments - 1);
		tell(context, s, false, text);
	}
}

static void log_remark(void *none, const struct stream *s, bool doubt, const char *text)
{
	(void)none;
	log_line(doubt ? LOG_WARNING : LOG_NOTE, "stream %s: %s", s->config->name, text);
}

void plan_log(const struct catalog *catalog)
{
	for (uint32_t i = 0; i < catalog->config->streams; i++)
		plan_tell(&catalog->stream[i], NULL, log_remark);
}
