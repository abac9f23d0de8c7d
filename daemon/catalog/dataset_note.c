#include "daemon/catalog/opening.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

enum { /* remark on frames of at least this size, and at least this many windows */
	LARGE_FRAME_BYTES = 1 << 20,
	LARGE_FRAME_WINDOWS = 16,
	UNSERVED_PART = 20, /* doubt if more than this part of the tokens is never served */
};

struct teller {
	dataset_teller *tell;
	void *context;
	const char *name;
};

__attribute__((format(printf, 3, 4))) static void note(
	const struct teller *t, bool doubt, const char *format, ...)
{
	char text[768];
	va_list args;
	int n = snprintf(text, sizeof(text), "%s: ", t->name);

	va_start(args, format);
	vsnprintf(text + n, sizeof(text) - (size_t)n, format, args);
	va_end(args);
	t->tell(t->context, doubt, text);
}

/* Tokens that no epoch serves. Gaps of a stride above the window are meant. */
static void note_unserved(const struct dataset *d, const struct teller *teller)
{
	const struct table *t = &d->table;
	bool tails = !d->config->slide && t->stride <= t->window_tokens;
	uint64_t lost = t->short_tokens + (tails ? t->tail_tokens : 0);

	if (t->windows == 0 || d->config->weight == 0 || lost <= t->total_tokens / UNSERVED_PART)
		return;
	double percent = 100.0 * (double)lost / (double)t->total_tokens;

	if (t->short_shards > 0)
		note(teller, true,
			"%.1f %% of its %" PRIu64 " tokens are never served: %" PRIu64
			" of its %" PRIu64 " shards are shorter than a window of %" PRIu64
			" tokens; use longer shards or a smaller seq_len",
			percent, t->total_tokens, t->short_shards, t->shards, t->window_tokens);
	else
		note(teller, true,
			"%.1f %% of its %" PRIu64
			" tokens are never served: the end of a shard is left out if it is shorter "
			"than a window of %" PRIu64
			" tokens; use longer shards, a smaller seq_len, or slide: true, which "
			"leaves out others in each epoch",
			percent, t->total_tokens, t->window_tokens);
}

void dataset_notes(const struct dataset *d, dataset_teller *tell, void *context)
{
	const struct teller t = {tell, context, d->config->name};
	const struct config_dataset *mine = d->config, *other = d->overlaps;
	uint64_t window = d->table.window_tokens * d->token_bytes;
	char part[ORDER_PART_BYTES], its[ORDER_PART_BYTES];

	if (d->note[0])
		note(&t, true, "shard %s (the first with a remark): %s",
			dataset_shard_name(d, d->note_shard), d->note);
	/* A frame is decoded as a whole. Only windows of the same block share frames. */
	if (mine->shuffle == ORDER_GLOBAL && d->frame_bytes >= LARGE_FRAME_BYTES &&
		d->frame_bytes / LARGE_FRAME_WINDOWS >= window)
		note(&t, false,
			"with shuffle: global each window of %" PRIu64
			" bytes decodes a zstd frame of up to %" PRIu64 " KiB, %" PRIu64
			" times as much; set shuffle: block, or compress in frames of 256 KiB",
			window, d->frame_bytes >> 10, d->frame_bytes / window);
	note_unserved(d, &t);
	if (d->refused)
		note(&t, true, "its stream will stop at a bad token: %s", d->refused);
	if (d->doubt[0])
		note(&t, true, "shard %s (the first of its kind): %s",
			dataset_shard_name(d, d->doubt_shard), d->doubt);
	if (dataset_is_part(d))
		note(&t, false, "windows %" PRIu64 " of %" PRIu64, d->windows, d->table.windows);
	if (other)
		note(&t, true,
			"its part of the path, %s, overlaps %s of dataset %s: both serve what is "
			"in both",
			order_part_text(mine->lo, mine->hi, part),
			order_part_text(other->lo, other->hi, its), other->name);
}
