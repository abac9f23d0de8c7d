#include "daemon/catalog/dataset_note.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { /* frames that are as large as both of these get a note */
	LARGE_FRAME_BYTES = 1 << 20,
	LARGE_FRAME_WINDOWS = 16,
	BOUNDS_OPEN = 500, /* and so do more lists of bounds than this */
};

/* A frame is always decoded whole. The windows of a block share a frame, others do not. */
static bool costly_frames(const struct dataset *d, char *text, size_t text_bytes)
{
	uint64_t window = d->table.window_tokens * d->token_bytes;

	if (d->config->shuffle != ORDER_GLOBAL || d->frame_bytes < LARGE_FRAME_BYTES ||
		d->frame_bytes / LARGE_FRAME_WINDOWS < window)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from anywhere, and its largest zstd frame decodes "
		"to %" PRIu64 " KiB: for each window of %" PRIu64 " bytes up to %" PRIu64
		" times as much is decoded; write shuffle: block, or compress in frames of 256 KiB",
		d->frame_bytes >> 10, window, d->frame_bytes / window);
	return true;
}

/* A list of bounds is unpacked whole when its shard is opened, and few shards are open at a time.
 */
static bool costly_bounds(const struct dataset *d, char *text, size_t text_bytes)
{
	if (!d->bounds || d->config->shuffle != ORDER_GLOBAL || d->table.shards <= BOUNDS_OPEN)
		return false;
	snprintf(text, text_bytes,
		"shuffle: global takes windows from any of its %" PRIu64
		" shards, and of their lists of document bounds (.csv.gz) some %d are kept at a "
		"time: most windows have a whole list unpacked; write shuffle: block",
		d->table.shards, BOUNDS_OPEN);
	return true;
}

static bool manifest_note(const struct dataset *d, char *text, size_t text_bytes)
{
	struct stat st;

	if (!d->sizes)
		return false;
	if (stat(d->root, &st) != 0)
		snprintf(text, text_bytes,
			"its shards are as %.200s says, below %.200s, which cannot be read now: %s",
			d->config->manifest, d->root, strerror(errno));
	else
		snprintf(text, text_bytes,
			"its shards are as %.200s says; none was looked at, each is compared when "
			"it is read first",
			d->config->manifest);
	return true;
}

bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes)
{
	if (i == 0 && dataset->note[0])
		snprintf(text, text_bytes, "shard %s (the first with something to say): %s",
			dataset_shard_name(dataset, dataset->note_shard), dataset->note);
	if (i == 3 && dataset->refused)
		snprintf(text, text_bytes, "its stream will stop there: %s", dataset->refused);
	return i == 3	? dataset->refused != NULL
	       : i == 0 ? dataset->note[0] != 0
	       : i == 1 ? (costly_frames(dataset, text, text_bytes) ||
				  costly_bounds(dataset, text, text_bytes))
			: i == 2 && manifest_note(dataset, text, text_bytes);
}
