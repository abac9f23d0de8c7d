#include "daemon/shard/arrow_message.h"

#include <stdio.h>

enum {
	CONTINUED = -1, /* the first word of messages since Arrow 0.15 */
	PREFIX_BYTES = 8,
	DICTIONARY_BATCH = 2,
	RECORD_BATCH = 3,
};

/* Numbers of the fields of a message that are read. */
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY };

bool arrow_check_version(struct arrow *a, const char *what, int64_t version)
{
	return version == ARROW_VERSION_4 || version == ARROW_VERSION_5 ||
	       arrow_refuse(a, "%s: version is %" PRId64 "; must be %d or %d (V4 or V5)", what,
		       version, ARROW_VERSION_4, ARROW_VERSION_5);
}

/*
 * Requires batches to follow one another, as all writers write them, so that none is counted twice.
 */
static bool read_block(struct arrow *a, uint32_t i, struct arrow_block *block)
{
	const uint8_t *p;

	if (!fb_bytes(&a->head, a->batches.at + (uint64_t)i * ARROW_BLOCK_BYTES, ARROW_BLOCK_BYTES,
		    "recordBatches", &p))
		return false;
	int64_t begin = (int64_t)bytes_u64(p), body = (int64_t)bytes_u64(p + 16);
	int32_t metadata = (int32_t)bytes_u32(p + 8);

	if (begin < 0 || (uint64_t)begin < a->at || (uint64_t)begin >= a->end || begin % 8 != 0)
		return arrow_refuse(a,
			"Arrow footer: offset of batch %" PRIu32 " is %" PRId64
			"; must be a multiple of 8, at least %" PRIu64
			" (the end of the previous batch) and below %" PRIu64 " (the footer)",
			i, begin, a->at, a->end);
	uint64_t most = a->end - (uint64_t)begin;

	if (metadata <= 8 || (uint64_t)metadata > most || metadata % 8 != 0)
		return arrow_refuse(a,
			"Arrow footer: metaDataLength of batch %" PRIu32 " is %" PRId32
			"; must be a multiple of 8, more than 8 and at most %" PRIu64
			" (up to the footer)",
			i, metadata, most);
	most -= (uint64_t)metadata;
	if (body < 0 || (uint64_t)body > most || body % 8 != 0)
		return arrow_refuse(a,
			"Arrow footer: bodyLength of batch %" PRIu32 " is %" PRId64
			"; must be a multiple of 8, 0 to %" PRIu64 " (up to the footer)",
			i, body, most);
	*block = (struct arrow_block){(uint64_t)begin, (uint64_t)metadata, (uint64_t)body};
	a->at = block->begin + block->metadata + block->body;
	return true;
}

/*
 * Reads the message's root table, in a file. Before Arrow 0.15 messages began with their length
 * alone.
 */
static bool read_root(struct arrow *a, const struct arrow_block *block, struct fb_table *to)
{
	struct fb *m = &a->message;
	const uint8_t *p;

	fb_init(m, a->b, block->begin, block->metadata, a->batch, a->fault);
	if (!fb_bytes(m, 0, 8, "its length", &p))
		return false;
	uint32_t prefix = (int32_t)bytes_u32(p) == CONTINUED ? 8 : 4;
	int32_t length = (int32_t)bytes_u32(p + prefix - 4);

	if (length <= 0 || (uint32_t)length > block->metadata - prefix)
		return arrow_refuse(a,
			"%s: its metadata's length is %" PRId32 "; must be 1 to %" PRIu64
			" (metaDataLength in the footer)",
			a->batch, length, block->metadata - prefix);
	m->size = prefix + (uint32_t)length;
	return fb_root(m, prefix, to);
}

static bool check_batch(struct arrow *a, const struct arrow_block *block,
	const struct fb_table *message, struct fb_table *batch)
{
	struct fb *m = &a->message;
	int64_t version, type, body;

	if (!fb_integer(m, message, MESSAGE_VERSION, 2, "version", &version) ||
		!fb_integer(m, message, MESSAGE_HEADER_TYPE, 1, "header_type", &type) ||
		!fb_integer(m, message, MESSAGE_BODY, 8, "bodyLength", &body))
		return false;
	if (!arrow_check_version(a, a->batch, version))
		return false;
	a->version_4 = version == ARROW_VERSION_4;
	if (type != RECORD_BATCH)
		return arrow_refuse(a, "%s: header_type is %" PRId64 "; must be %d, a record batch",
			a->batch, type, RECORD_BATCH);
	if ((uint64_t)body != block->body)
		return arrow_refuse(a,
			"%s: bodyLength is %" PRId64 "; must be %" PRIu64 ", as in the footer",
			a->batch, body, block->body);
	if (!fb_table(m, message, MESSAGE_HEADER, "header", batch))
		return false;
	return batch->at ||
	       arrow_refuse(a, "%s: header is absent; must be a record batch", a->batch);
}

/*
 * Reads the header of the stream's next message into @m. *@end: there is none. Every message begins
 * with CONTINUED, the length of its metadata, and the metadata; its body follows.
 */
static bool stream_message(struct arrow *a, struct fb *m, const char *what,
	struct arrow_block *block, struct fb_table *to, bool *end)
{
	uint64_t left = a->end - a->at;
	const uint8_t *p;
	int64_t body;

	*end = left == 0;
	if (*end)
		return true;
	fb_init(m, a->b, a->at, left, what, a->fault);
	if (left < PREFIX_BYTES)
		return arrow_refuse(a,
			"%s: only %" PRIu64 " bytes are left at byte %" PRIu64
			": the stream is truncated",
			what, left, a->at);
	if (!fb_bytes(m, 0, PREFIX_BYTES, "its length", &p))
		return false;
	uint32_t word = bytes_u32(p);
	int32_t length = (int32_t)bytes_u32(p + 4);

	if ((int32_t)word != CONTINUED)
		return arrow_refuse(a,
			"%s: begins with 0x%08" PRIx32 " at byte %" PRIu64
			"; must be 0xffffffff: the stream is damaged",
			what, word, a->at);
	if (length == 0) {
		a->closed = *end = true;
		return left == PREFIX_BYTES ||
		       arrow_refuse(a,
			       "Arrow stream: %" PRIu64
			       " bytes follow its end marker at byte %" PRIu64
			       ", which belong to no batch",
			       left - PREFIX_BYTES, a->at);
	}
	if (length < 0 || (uint64_t)length > left - PREFIX_BYTES || length % 8 != 0)
		return arrow_refuse(a,
			"%s: its metadata's length is %" PRId32
			"; must be a multiple of 8, 8 to %" PRIu64
			" (up to the end): the stream is truncated or damaged",
			what, length, left - PREFIX_BYTES);
	m->size = PREFIX_BYTES + (uint64_t)length;
	left -= m->size;
	if (!fb_root(m, PREFIX_BYTES, to) ||
		!fb_integer(m, to, MESSAGE_BODY, 8, "bodyLength", &body))
		return false;
	if (body < 0 || (uint64_t)body > left || body % 8 != 0)
		return arrow_refuse(a,
			"%s: bodyLength is %" PRId64 "; must be a multiple of 8, 0 to %" PRIu64
			" (up to the end): the stream is truncated or damaged",
			what, body, left);
	*block = (struct arrow_block){a->at, m->size, (uint64_t)body};
	a->at += block->metadata + block->body;
	return true;
}

bool arrow_stream_schema(struct arrow *a, struct fb_table *schema)
{
	struct arrow_block block;
	struct fb_table message;
	int64_t version, type;
	bool end;

	if (!stream_message(a, &a->head, "Arrow schema", &block, &message, &end))
		return false;
	if (end)
		return arrow_refuse(a, "Arrow stream: has no schema: it is empty");
	if (!fb_integer(&a->head, &message, MESSAGE_VERSION, 2, "version", &version) ||
		!fb_integer(&a->head, &message, MESSAGE_HEADER_TYPE, 1, "header_type", &type))
		return false;
	if (!arrow_check_version(a, "Arrow schema", version))
		return false;
	if (type != ARROW_SCHEMA)
		return arrow_refuse(a,
			"Arrow schema: header_type is %" PRId64 "; must be %d: the first message "
			"of a stream is its schema",
			type, ARROW_SCHEMA);
	return fb_table(&a->head, &message, MESSAGE_HEADER, "schema", schema);
}

/* The next message of a stream that is not a dictionary. */
static bool next_in_stream(
	struct arrow *a, struct arrow_block *block, struct fb_table *message, bool *end)
{
	int64_t type = DICTIONARY_BATCH;

	while (type == DICTIONARY_BATCH)
		if (!stream_message(a, &a->message, a->batch, block, message, end) ||
			(!*end && !fb_integer(&a->message, message, MESSAGE_HEADER_TYPE, 1,
					  "header_type", &type)))
			return false;
		else if (*end)
			return true;
	return true;
}

bool arrow_next_message(
	struct arrow *a, struct arrow_block *block, struct fb_table *batch, bool *end)
{
	struct fb_table message;

	snprintf(a->batch, sizeof(a->batch), "Arrow batch %" PRIu32, a->next);
	if (a->stream) {
		if (!next_in_stream(a, block, &message, end))
			return false;
	} else {
		*end = a->next == a->batches.count;
		if (!*end && (!read_block(a, a->next, block) || !read_root(a, block, &message)))
			return false;
	}
	a->next++;
	return *end || check_batch(a, block, &message, batch);
}
