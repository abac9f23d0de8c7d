#include "daemon/control/control.h"

#include "daemon/catalog/dataset_note.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Shards that state nothing are believed: at least their ids could be compared. */
static void tell_vocab(const struct stream *s, void *context,
	void (*tell)(void *context, const struct stream *s, bool doubt, const char *text))
{
	for (uint32_t d = 0; d < s->config->datasets; d++)
		if (s->dataset[d].format->raw && !s->config->has_vocab) {
			tell(context, s, true,
				"its shards do not state what they hold, and unknown ids cannot be "
				"found: add `vocab: N` to the stream, the number of your "
				"tokenizer's ids");
			return;
		}
}

void plan_tell(const struct stream *s, void *context,
	void (*tell)(void *context, const struct stream *s, bool doubt, const char *text))
{
	const struct cursor *c = &s->begin;
	char text[768], note[512] = "";

	for (uint32_t d = 0; d < s->config->datasets; d++)
		for (unsigned i = 0; i < DATASET_NOTES; i++) {
			enum dataset_note kind =
				dataset_note(&s->dataset[d], i, note, sizeof(note));

			snprintf(text, sizeof(text), "%s: %s", s->config->dataset[d].name, note);
			if (kind != NOTE_NONE)
				tell(context, s, kind == NOTE_DOUBT, text);
		}

	tell_vocab(s, context, tell);
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

static void log_one(void *context, const struct stream *s, bool doubt, const char *text)
{
	(void)context;
	log_line(doubt ? LOG_WARNING : LOG_NOTE, "stream %s: %s", s->config->name, text);
}

void plan_log(const struct stream *s)
{
	plan_tell(s, NULL, log_one);
}

/* ---- a run with another mix than the config's ---- */

/* Writes " NAME=SHARE" for each dataset of @names with a share in @mix, a segment of @c. */
static const char *put_mix(char text[320], const struct cursor *c, const struct order_segment *mix,
	const struct cursor *names)
{
	double sum = 0;
	size_t n = 0;

	text[0] = 0;
	for (uint32_t i = 0; i < mix->datasets; i++)
		sum += (double)mix->units[i];
	for (uint32_t i = 0; i < names->datasets && n < 320; i++) {
		int d = cursor_find(c, names->dataset[i].name);

		if (d >= 0 && (uint32_t)d < mix->datasets && mix->units[d] > 0)
			n += (size_t)snprintf(text + n, 320 - n, " %s=%.4g", names->dataset[i].name,
				(double)mix->units[d] / sum);
	}
	return text;
}

bool plan_mix_differs(const struct stream *s, const struct cursor *c, const char *run, char *text,
	size_t text_bytes)
{
	char is[320], was[320];

	put_mix(is, &s->begin, s->begin.segment[0], &s->begin);
	if (c->epochs || cursor_now(c)->start > 0)
		return false;
	for (uint32_t i = 0; i < c->segments; i++)
		if (strcmp(put_mix(was, c, c->segment[i], &s->begin), is) == 0)
			return false;
	snprintf(text, text_bytes,
		"stream %s: run %s keeps the mix that it began with,%s; the config's weights are "
		"now%s, and act in new runs only; to change this run: tokctl mix %s --run %s%s",
		s->config->name, run, put_mix(was, c, c->segment[0], c), is, s->config->name, run,
		is);
	return true;
}
