/* Remarks for users about streams and datasets. */
#include "daemon/catalog/opening.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { /* remark on frames of at least this size, and at least this many windows */
	LARGE_FRAME_BYTES = 1 << 20,
	LARGE_FRAME_WINDOWS = 16,
	UNSERVED_PART = 20, /* doubt if more than this part of the tokens is never served */
};

/* To whom, about what. */
struct teller {
	const struct stream *stream;
	stream_teller *tell;
	void *context;
	const char *dataset; /* name; "": the stream */
};

__attribute__((format(printf, 3, 4))) static void note(
	const struct teller *t, bool doubt, const char *format, ...)
{
	char text[768];
	va_list args;
	int n = snprintf(text, sizeof(text), "%s%s", t->dataset, t->dataset[0] ? ": " : t->dataset);

	va_start(args, format);
	vsnprintf(text + n, sizeof(text) - (size_t)n, format, args);
	va_end(args);
	t->tell(t->context, t->stream, doubt, text);
}

/* Tokens that no epoch serves. Gaps of a stride above the window are meant. */
static void note_unserved(const struct teller *t, const struct dataset *d)
{
	const struct table *w = &d->table;
	bool tails = !d->config->slide && w->stride <= w->window_tokens;
	uint64_t lost = w->short_tokens + (tails ? w->tail_tokens : 0);

	if (w->windows == 0 || d->config->weight == 0 || lost <= w->total_tokens / UNSERVED_PART)
		return;
	note(t, true,
		"%.1f %% of its %" PRIu64 " tokens are never served: %" PRIu64 " of its %" PRIu64
		" shards are shorter than a window of %" PRIu64
		" tokens, and what is left at the end of a shard is left out; use longer shards, a "
		"smaller seq_len, or slide: true, which leaves out other ends in each epoch",
		100.0 * (double)lost / (double)w->total_tokens, w->total_tokens, w->short_shards,
		w->shards, w->window_tokens);
}

static void note_dataset(const struct teller *t, const struct dataset *d)
{
	const struct config_dataset *mine = d->config, *other = d->overlaps;
	uint64_t window = d->table.window_tokens * d->token_bytes;
	char part[ORDER_PART_BYTES], its[ORDER_PART_BYTES];

	if (d->note[0])
		note(t, true, "shard %s (the first with a remark): %s",
			dataset_shard_name(d, d->note_shard), d->note);
	/* A frame is decoded as a whole. Only windows of the same block share frames. */
	if (mine->shuffle == ORDER_GLOBAL && d->frame_bytes >= LARGE_FRAME_BYTES &&
		d->frame_bytes / LARGE_FRAME_WINDOWS >= window)
		note(t, false,
			"with shuffle: global each window of %" PRIu64
			" bytes decodes a zstd frame of up to %" PRIu64 " KiB, %" PRIu64
			" times as much; set shuffle: block, or compress in frames of 256 KiB",
			window, d->frame_bytes >> 10, d->frame_bytes / window);
	note_unserved(t, d);
	if (d->refused)
		note(t, true, "its stream will stop at a bad token: %s", d->refused);
	if (d->doubt[0])
		note(t, true, "shard %s (the first of its kind): %s",
			dataset_shard_name(d, d->doubt_shard), d->doubt);
	if (d->names[0])
		note(t, true, "%s", d->names);
	if (dataset_is_part(d))
		note(t, false, "windows %" PRIu64 " of %" PRIu64, d->windows, d->table.windows);
	if (other)
		note(t, true,
			"its part of the path, %s, overlaps %s of dataset %s: both serve what is "
			"in both",
			order_part_text(mine->lo, mine->hi, part),
			order_part_text(other->lo, other->hi, its), other->name);
}

static void note_end(const struct teller *t, const struct cursor *c, uint32_t d)
{
	uint64_t position, unserved, most = c->dataset[d].max_epochs;

	if (most > 0 && cursor_unserved(c, d, &position, &unserved))
		note(t, false,
			"max_epochs %" PRIu64 ": ends at position %" PRIu64 "; %" PRIu64
			" of its %" PRIu64 " × %" PRIu64 " windows are never served",
			most, position, unserved, most, c->order[d].windows);
	else if (most > 0)
		note(t, false, "max_epochs %" PRIu64 ": not reached before the stream ends", most);
}

void stream_notes(const struct stream *s, stream_teller *tell, void *context)
{
	struct teller t = {s, tell, context, ""};
	bool raw = false;

	for (uint32_t d = 0; d < s->config->datasets; d++) {
		t.dataset = s->dataset[d].config->name;
		note_dataset(&t, &s->dataset[d]);
		raw |= s->dataset[d].format->raw;
	}
	t.dataset = "";
	/* Shards that state nothing are believed: at least their ids could be compared. */
	if (raw && !s->config->has_vocab)
		note(&t, true,
			"its shards do not state what they hold, and unknown ids cannot be found: "
			"add `vocab: N` to the stream, the number of your tokenizer's ids");
	for (uint32_t d = 0; d < s->begin.datasets; d++) {
		t.dataset = s->begin.dataset[d].name;
		note_end(&t, &s->begin, d);
	}
	t.dataset = "";
	if (s->config->steps > 0)
		note(&t, false,
			"schedule: %" PRIu32 " steps; %" PRIu32 " changes of the mix in all",
			s->config->steps, s->begin.segments - 1);
}

/* ---- doubts by names ---- */

/* What a word in a shard's name, or an ending of it, means. */
static const struct {
	const char *words, *what;
} kinds[] = {
	{" val valid validation test eval dev ", "validation data"},
	{" partial tmp temp incomplete download ", "a file that is being written"},
	{" copy bak backup old orig ", "a copy"},
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Index of the kind, or -1. */
static int kind_of(const char *name)
{
	const char *base = bytes_name(name), *at = name, *open;
	char word[16] = " "; /* longer than all of them */
	size_t n = 1;

	do {
		if (isalpha((unsigned char)*at)) {
			if (n < sizeof(word) - 2)
				word[n++] = (char)tolower((unsigned char)*at);
			continue;
		}
		word[n] = ' ';
		word[n + 1] = 0;
		for (int k = 0; n > 1 && k < KINDS; k++)
			if (strstr(kinds[k].words, word))
				return k;
		n = 1;
	} while (*at++);
	if (strstr(base, ".part.")) /* "part" alone is a word in many names of shards */
		return 1;
	open = strstr(base, " ("); /* "x (1).bin" */
	return open && isdigit((unsigned char)open[2]) && strchr(open, ')') ? 2 : -1;
}

void dataset_doubt_names(struct dataset *d)
{
	uint64_t shards = d->table.shards, of[KINDS] = {0}, first[KINDS];

	for (uint64_t s = 0; s < shards; s++) {
		int k = kind_of(dataset_shard_name(d, s));

		if (k >= 0 && of[k]++ == 0)
			first[k] = s;
	}
	for (int k = 0; k < KINDS; k++)
		if (of[k] > 0 && of[k] < shards) {
			snprintf(d->names, sizeof(d->names),
				"%.180s is %s by its name (%" PRIu64 " of %" PRIu64
				" shards); if it does not belong there, move it away",
				dataset_shard_name(d, first[k]), kinds[k].what, of[k], shards);
			return;
		}
}
