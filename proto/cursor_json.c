#include "proto/cursor_json.h"

#include "proto/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct text {
	char *bytes;
	size_t n, capacity;
	bool full; /* a part did not fit; nothing after it is written */
};

static void put_bytes(struct text *t, const char *bytes, size_t n)
{
	assert(t->n <= t->capacity);
	if (t->full || n >= t->capacity - t->n) {
		t->full = true;
		return;
	}
	memcpy(t->bytes + t->n, bytes, n);
	t->n += n;
}

static void put(struct text *t, const char *text)
{
	put_bytes(t, text, strlen(text));
}

static void put_number(struct text *t, uint64_t value)
{
	char digits[21];

	put_bytes(t, digits, (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, value));
}

static void put_pair(struct text *t, const char *before, const char *key, uint64_t value)
{
	put(t, before);
	put(t, "\"");
	put(t, key);
	put(t, "\":");
	put_number(t, value);
}

/* Names have no control characters. A byte that is not UTF-8 becomes \udcXX, as Python's
 * surrogateescape does. */
static void put_string(struct text *t, const char *text)
{
	char escape[8];

	put(t, "\"");
	while (*text) {
		unsigned n = text_character(text);

		if (n == 0 || *text == '"' || *text == '\\') {
			snprintf(escape, sizeof(escape), "\\u%04x",
				(unsigned char)*text | (n ? 0 : 0xdc00));
			put(t, escape);
			text++;
		} else {
			put_bytes(t, text, n);
			text += n;
		}
	}
	put(t, "\"");
}

static void put_list(
	struct text *t, const char *key, const uint64_t *values, uint32_t n, uint32_t of)
{
	put(t, ",\"");
	put(t, key);
	put(t, "\":[");
	for (uint32_t i = 0; i < of; i++) {
		put(t, i ? "," : "");
		put_number(t, i < n ? values[i] : 0);
	}
	put(t, "]");
}

static void put_dataset(struct text *t, const struct cursor *c, uint32_t d)
{
	const struct order_dataset *o = &c->order[d];
	uint64_t ends_at, unserved;
	char part[ORDER_PART_BYTES];

	assert(d < c->datasets && o->shuffle <= ORDER_BLOCK);
	put(t, d ? ",{\"name\":" : "{\"name\":");
	put_string(t, c->dataset[d].name);
	put_pair(t, ",", "windows", o->windows);
	put_pair(t, ",", "digest", c->dataset[d].digest);
	put(t, ",\"shuffle\":");
	put_string(t, order_shuffles[o->shuffle]);
	put_pair(t, ",", "block", o->block);
	put_pair(t, ",", "group", o->group);
	put(t, o->slide ? ",\"slide\":true" : ",\"slide\":false");
	put(t, ",\"part\":");
	put(t, o->part.of ? order_part_text(c->dataset[d].lo, c->dataset[d].hi, part) : "null");
	put_pair(t, ",", "path_windows", order_path_windows(o));
	if (c->dataset[d].max_epochs)
		put_pair(t, ",", "max_epochs", c->dataset[d].max_epochs);
	else
		put(t, ",\"max_epochs\":null");
	if (cursor_unserved(c, d, &ends_at, &unserved)) {
		put_pair(t, ",", "ends_at", ends_at);
		put_pair(t, ",", "unserved", unserved);
	} else {
		put(t, ",\"ends_at\":null,\"unserved\":null");
	}
	put(t, "}");
}

/* Segments [@from, @to). */
static void put_segments(
	struct text *t, const struct cursor *c, const char *key, uint32_t from, uint32_t to)
{
	uint32_t now = cursor_past(c);

	put(t, ",\"");
	put(t, key);
	put(t, "\":[");
	for (uint32_t i = from; i < to; i++) {
		const struct order_segment *s = c->segment[i];

		put_pair(t, i > from ? ",{" : "{", "start", s->start);
		put(t, i > now ? ",\"pending\":true" : ",\"pending\":false");
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
	put_pair(t, ",", "seed", c->seed);
	put_pair(t, ",", "seq_len", c->seq_len);
	put_pair(t, ",", "extra", c->extra);
	put_pair(t, ",", "stride", c->stride);
	put_pair(t, ",", "epochs", c->epochs);
	put_pair(t, ",", "samples", c->samples);
	put_pair(t, ",", "next", c->next);
	if (c->epochs || c->samples)
		put_pair(t, ",", "end", cursor_end(c));
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
	struct text t = {.bytes = json, .capacity = capacity};

	assert(json || capacity == 0);
	cursor_check(cursor);
	put_cursor(&t, cursor);
	if (t.full)
		return 0;
	json[t.n] = 0;
	return t.n;
}
