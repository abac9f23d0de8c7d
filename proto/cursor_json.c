/* A cursor as one JSON object. */
#include "proto/cursor.h"

#include "proto/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define U64 "%" PRIu64

struct text {
	char *bytes;
	size_t n, capacity;
	bool full; /* a part did not fit; nothing after it is written */
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *format, ...)
{
	size_t room = t->capacity - t->n;
	va_list args;

	assert(t->n <= t->capacity);
	if (t->full)
		return;
	va_start(args, format);
	int n = vsnprintf(t->bytes + t->n, room, format, args);

	va_end(args);
	assert(n >= 0);
	t->full = (size_t)n >= room;
	t->n += t->full ? 0 : (size_t)n;
}

/* Names have no control characters. A byte that is not UTF-8 becomes \udcXX, as Python's
 * surrogateescape does. */
static void put_string(struct text *t, const char *text)
{
	put(t, "\"");
	while (*text) {
		unsigned n = text_character(text);

		if (n == 0 || *text == '"' || *text == '\\') {
			put(t, "\\u%04x", (unsigned char)*text | (n ? 0 : 0xdc00));
			text++;
		} else {
			put(t, "%.*s", (int)n, text);
			text += n;
		}
	}
	put(t, "\"");
}

static void put_list(
	struct text *t, const char *key, const uint64_t *values, uint32_t n, uint32_t of)
{
	put(t, ",\"%s\":[", key);
	for (uint32_t i = 0; i < of; i++)
		put(t, "%s" U64, i ? "," : "", i < n ? values[i] : 0);
	put(t, "]");
}

static void put_dataset(struct text *t, const struct cursor *c, uint32_t d)
{
	const struct cursor_dataset *dataset = &c->dataset[d];
	const struct order_dataset *o = &c->order[d];
	uint64_t ends_at, unserved;
	char part[ORDER_PART_BYTES];

	assert(d < c->datasets && o->shuffle <= ORDER_BLOCK);
	put(t, "%s{\"name\":", d ? "," : "");
	put_string(t, dataset->name);
	put(t, ",\"windows\":" U64 ",\"digest\":" U64 ",\"shuffle\":\"%s\"", o->windows,
		dataset->digest, order_shuffles[o->shuffle]);
	put(t, ",\"block\":%u,\"group\":%u,\"slide\":%s,\"part\":%s", o->block, o->group,
		o->slide ? "true" : "false",
		o->part.of ? order_part_text(dataset->lo, dataset->hi, part) : "null");
	put(t, ",\"path_windows\":" U64, order_path_windows(o));
	if (dataset->max_epochs)
		put(t, ",\"max_epochs\":" U64, dataset->max_epochs);
	else
		put(t, ",\"max_epochs\":null");
	if (cursor_unserved(c, d, &ends_at, &unserved))
		put(t, ",\"ends_at\":" U64 ",\"unserved\":" U64 "}", ends_at, unserved);
	else
		put(t, ",\"ends_at\":null,\"unserved\":null}");
}

/* Segments [@from, @to). */
static void put_segments(
	struct text *t, const struct cursor *c, const char *key, uint32_t from, uint32_t to)
{
	uint32_t now = cursor_past(c);

	put(t, ",\"%s\":[", key);
	for (uint32_t i = from; i < to; i++) {
		const struct order_segment *s = c->segment[i];

		put(t, "%s{\"start\":" U64 ",\"pending\":%s", i > from ? "," : "", s->start,
			i > now ? "true" : "false");
		put_list(t, "units", s->units, s->datasets, c->datasets);
		put_list(t, "base", s->base, s->datasets, c->datasets);
		put(t, "}");
	}
	put(t, "]");
}

static void put_cursor(struct text *t, const struct cursor *c)
{
	put(t, "{\"stream\":");
	put_string(t, c->stream);
	put(t, ",\"seed\":" U64 ",\"seq_len\":" U64 ",\"extra\":" U64 ",\"stride\":" U64, c->seed,
		c->seq_len, c->extra, c->stride);
	put(t, ",\"epochs\":" U64 ",\"samples\":" U64 ",\"next\":" U64, c->epochs, c->samples,
		c->next);
	if (c->epochs || c->samples)
		put(t, ",\"end\":" U64, cursor_end(c));
	else
		put(t, ",\"end\":null");
	put(t, ",\"datasets\":[");
	for (uint32_t d = 0; d < c->datasets; d++)
		put_dataset(t, c, d);
	put(t, "]");
	put_segments(t, c, "past", 0, cursor_past(c));
	put_segments(t, c, "segments", cursor_past(c), c->segments);
	put(t, "}");
}

size_t cursor_json(const struct cursor *cursor, char *json, size_t capacity)
{
	struct text t = {.bytes = json, .capacity = capacity, .full = capacity == 0};

	assert(json || capacity == 0);
	cursor_check(cursor);
	put_cursor(&t, cursor);
	return t.full ? 0 : t.n;
}
