#include "daemon/shard/mds_front.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MOST = 1 << 20 };

static bool read_offsets(const struct bytes *b, struct mds_front *f, struct fault *fault)
{
	uint8_t head[12], last[4];

	if (b->size < sizeof(head))
		return fault_set(fault, FAULT_DATA, "",
			"its size is %" PRIu64 " bytes; a shard of one sample has at least %zu",
			b->size, sizeof(head));
	if (!bytes_read(b, 0, head, sizeof(head), fault))
		return false;
	f->samples = bytes_u32(head);
	uint64_t table = 4 + 4 * ((uint64_t)f->samples + 1);

	if (f->samples == 0)
		return fault_set(fault, FAULT_DATA, "",
			"number of samples is 0: it has no tokens; remove it");
	if (table > b->size)
		return fault_set(fault, FAULT_DATA, "",
			"number of samples is %" PRIu32 ", whose offsets end at byte %" PRIu64
			"; the file has %" PRIu64 " bytes",
			f->samples, table, b->size);
	f->first = bytes_u32(head + 4);
	f->second = bytes_u32(head + 8);
	if (!bytes_read(b, table - 4, last, sizeof(last), fault))
		return false;
	f->end = bytes_u32(last);
	if (f->end != b->size)
		return fault_set(fault, FAULT_DATA, "",
			"the last sample ends at byte %" PRIu32 " (offset %" PRIu32
			"); the file has %" PRIu64 " bytes",
			f->end, f->samples, b->size);
	if (f->first < table || f->first > f->end)
		return fault_set(fault, FAULT_DATA, "",
			"offset 0 is %" PRIu32 "; must be %" PRIu64
			" (the end of the offsets) to %" PRIu32,
			f->first, table, f->end);
	if (f->second < f->first || f->second > f->end)
		return fault_set(fault, FAULT_DATA, "",
			"offset 1 is %" PRIu32 "; must be %" PRIu32 " to %" PRIu32, f->second,
			f->first, f->end);
	return true;
}

static bool parse_config(const char *text, size_t n, const struct shard_hint *hint,
	struct mds_front *f, struct fault *fault)
{
	json_t *config = json_object_of(text, n, fault);

	if (!config)
		return fault_prefix(fault, "config: ");
	bool fine = mds_check_version(config, "config: ", fault) &&
		    mds_check_columns(config, "config: ", fault) &&
		    mds_lay_out(config, hint, &f->layout, fault);

	f->columns = fine ? mds_columns_text(config) : NULL;
	json_decref(config);
	return fine && (f->columns || fault_memory(fault));
}

bool mds_read_front(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault)
{

	f->columns = NULL;
	f->has_hash = f->listed_differ = false;
	f->window_tokens = hint->window_tokens;
	if (!read_offsets(b, f, fault))
		return false;
	uint64_t from = 4 + 4 * ((uint64_t)f->samples + 1), n = f->first - from;

	if (n > CONFIG_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"config is %" PRIu64 " bytes long (offset 0 is %" PRIu32
			"); must be at most %d",
			n, f->first, CONFIG_MOST);
	char *text = malloc(n + 1);

	if (!text)
		return fault_memory(fault);
	bool fine = bytes_read(b, from, text, n, fault) && parse_config(text, n, hint, f, fault);

	free(text);
	return fine;
}

static bool begin_read(const struct bytes *b, uint64_t at, void *to, size_t n, struct fault *fault)
{
	const struct mds_begin *s = (const struct mds_begin *)b;

	if (at + n > s->n)
		return bytes_read(s->whole, at, to, n, fault);
	memcpy(to, s->data + at, n);
	return true;
}

static void begin_forget(const struct bytes *b)
{
	bytes_forget(((const struct mds_begin *)b)->whole);
}

static const struct bytes_ops begin_ops = {.read = begin_read, .forget = begin_forget};

void mds_begin_make(struct mds_begin *s, const struct bytes *b)
{
	uint8_t head[8];

	*s = (struct mds_begin){.bytes = *b, .whole = b};
	s->bytes.ops = &begin_ops;
	if (b->plain || bytes_head(b, head, sizeof(head)) < sizeof(head))
		return;
	/* Up to offset 0, and the part of the first sample that is checked. */
	uint64_t n = (uint64_t)bytes_u32(head + 4) + MDS_LEAD_BYTES,
		 most = 4 * (uint64_t)bytes_u32(head);

	if (n > b->size || n > most + CONFIG_MOST)
		return;
	s->data = malloc(n);
	if (s->data)
		s->n = bytes_head(b, s->data, n);
}
