#include "daemon/shard/arrow_batch.h"

#include <stdio.h>

enum {
	CONTINUED = -1, /* the first word of messages since Arrow 0.15 */
	NODE_BYTES = 16,
	BUFFER_BYTES = 16,
	RECORD_BATCH = 3,
};

/* Numbers of the fields of a message's tables that are read. */
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY };
enum { BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION, BATCH_VARIADIC };
enum { COMPRESSION_CODEC };

bool arrow_check_version(struct arrow *a, const char *what, int64_t version)
{
	return version == ARROW_VERSION_4 || version == ARROW_VERSION_5 ||
	       arrow_refuse(a, "%s: version is %" PRId64 "; must be %d or %d (V4 or V5)", what,
		       version, ARROW_VERSION_4, ARROW_VERSION_5);
}

struct block {
	uint64_t begin, metadata, body; /* offset in the file; sizes in bytes */
};

/*
 * Requires batches to follow one another, as all writers write them, so that none is counted twice.
 */
static bool read_block(struct arrow *a, uint32_t i, struct block *block)
{
	const uint8_t *p;

	if (!fb_bytes(&a->footer, a->batches.at + (uint64_t)i * ARROW_BLOCK_BYTES,
		    ARROW_BLOCK_BYTES, "recordBatches", &p))
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
	*block = (struct block){(uint64_t)begin, (uint64_t)metadata, (uint64_t)body};
	a->at = block->begin + block->metadata + block->body;
	return true;
}

/* Reads the message's root table. Before Arrow 0.15 messages began with their length alone. */
static bool read_message(struct arrow *a, const struct block *block, struct fb_table *to)
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

static bool check_message(struct arrow *a, const struct block *block,
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

static bool refuse_compressed(struct arrow *a, const struct fb_table *compression)
{
	int64_t codec;

	if (!fb_integer(&a->message, compression, COMPRESSION_CODEC, 1, "codec", &codec))
		return false;
	return arrow_refuse(a,
		"%s: its body is compressed (%s), which is not supported; write it without "
		"compression, or compress the whole file as seekable zstd",
		a->batch,
		codec == 0   ? "LZ4_FRAME"
		: codec == 1 ? "ZSTD"
			     : "an unknown codec");
}

/*
 * Counts the buffers before our column's, and all buffers: those of the layout, and for views as
 * many more as the batch states.
 */
static bool count_buffers(
	struct arrow *a, const struct fb_table *batch, uint64_t *before, uint64_t *all)
{
	struct fb_vector counts;
	const uint8_t *p;

	*before = a->before.buffers + (a->version_4 ? a->before.bare : 0);
	*all = a->all.buffers + (a->version_4 ? a->all.bare : 0);
	if (!fb_vector(&a->message, batch, BATCH_VARIADIC, 8, "variadicBufferCounts", &counts))
		return false;
	if (counts.count != a->all.views)
		return arrow_refuse(a,
			"%s: variadicBufferCounts has %" PRIu32 " items; its columns need %" PRIu32,
			a->batch, counts.count, a->all.views);
	for (uint32_t i = 0; i < counts.count; i++) {
		if (!fb_bytes(&a->message, counts.at + 8 * (uint64_t)i, 8, "variadicBufferCounts",
			    &p))
			return false;
		uint64_t n = bytes_u64(p);

		if (n > INT32_MAX)
			return arrow_refuse(a,
				"%s: variadicBufferCounts item %" PRIu32 " is %" PRId64
				"; must be 0 to %d",
				a->batch, i, (int64_t)n, INT32_MAX);
		*all += n;
		*before += i < a->before.views ? n : 0;
	}
	return true;
}

/* Our column's node must have as many rows as the batch, and no nulls. */
static bool check_node(struct arrow *a, const struct fb_table *batch, int64_t rows)
{
	struct fb_vector nodes;
	const uint8_t *p;

	if (!fb_vector(&a->message, batch, BATCH_NODES, NODE_BYTES, "nodes", &nodes))
		return false;
	if (nodes.count != a->all.fields)
		return arrow_refuse(a, "%s: nodes has %" PRIu32 " items; its columns need %" PRIu32,
			a->batch, nodes.count, a->all.fields);
	if (!fb_bytes(&a->message, nodes.at + (uint64_t)a->before.fields * NODE_BYTES, NODE_BYTES,
		    "nodes", &p))
		return false;
	int64_t length = (int64_t)bytes_u64(p), nulls = (int64_t)bytes_u64(p + 8);

	if (length != rows)
		return arrow_refuse(a,
			"%s: length of column '%s' is %" PRId64 "; must be %" PRId64
			", as the batch's",
			a->batch, a->name, length, rows);
	return nulls == 0 || arrow_refuse(a,
				     "%s: null_count of column '%s' is %" PRId64
				     "; must be 0: every row is a token",
				     a->batch, a->name, nulls);
}

/*
 * A column without nulls may have a validity bitmap. All its bits must be set: the value of a null
 * row is undefined.
 */
static bool check_validity(
	struct arrow *a, const struct block *block, uint64_t offset, uint64_t length, uint64_t rows)
{
	uint64_t bytes = (rows + 7) / 8, body = block->begin + block->metadata;
	uint8_t bits[1024];

	if (length == 0)
		return true;
	if (offset > block->body || length > block->body - offset || length < bytes)
		return arrow_refuse(a,
			"%s: validity of column '%s' is %" PRId64 " bytes from byte %" PRId64
			" of the body on; must be at least %" PRIu64 " and within its %" PRIu64
			" bytes",
			a->batch, a->name, (int64_t)length, (int64_t)offset, bytes, block->body);
	for (uint64_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < sizeof(bits) ? bytes - at : sizeof(bits);
		if (!bytes_read(a->b, body + offset + at, bits, n, a->fault))
			return false;
		for (uint64_t row = 8 * at; row < 8 * (at + n) && row < rows; row++)
			if (!(bits[row / 8 - at] >> row % 8 & 1))
				return arrow_refuse(a,
					"%s: null_count of column '%s' is 0, but in its validity "
					"row %" PRIu64 " is null; every row must be a token",
					a->batch, a->name, row);
	}
	return true;
}

/* Sets *@at to the offset of our column's values in the file. */
static bool find_values(struct arrow *a, const struct block *block, const struct fb_table *batch,
	uint64_t rows, uint64_t *at)
{
	uint64_t before, all;
	struct fb_vector buffers;
	const uint8_t *p;

	if (!count_buffers(a, batch, &before, &all) ||
		!fb_vector(&a->message, batch, BATCH_BUFFERS, BUFFER_BYTES, "buffers", &buffers))
		return false;
	if (buffers.count != all)
		return arrow_refuse(a,
			"%s: buffers has %" PRIu32 " items; its columns need %" PRIu64, a->batch,
			buffers.count, all);
	/* A column of integers has two buffers: validity and values. */
	if (!fb_bytes(&a->message, buffers.at + before * BUFFER_BYTES, 2 * BUFFER_BYTES, "buffers",
		    &p))
		return false;
	uint64_t valid_at = bytes_u64(p), valid = bytes_u64(p + 8);
	uint64_t offset = bytes_u64(p + BUFFER_BYTES), length = bytes_u64(p + BUFFER_BYTES + 8);

	if (offset > block->body || length > block->body - offset || offset % 8 != 0)
		return arrow_refuse(a,
			"%s: values of column '%s' are %" PRId64 " bytes from byte %" PRId64
			" of the body on; must begin at a multiple of 8 and stay within its "
			"%" PRIu64 " bytes",
			a->batch, a->name, (int64_t)length, (int64_t)offset, block->body);
	if (rows > length / shard_type_bytes(a->type))
		return arrow_refuse(a,
			"%s: length is %" PRIu64
			" rows, but the values of column '%s' have %" PRIu64
			" bytes, which is %" PRIu64 " of %s",
			a->batch, rows, a->name, length, length / shard_type_bytes(a->type),
			shard_type_name(a->type));
	*at = block->begin + block->metadata + offset;
	return check_validity(a, block, valid_at, valid, rows);
}

bool arrow_next(struct arrow *a, uint32_t i, uint64_t *rows, uint64_t *at)
{
	struct fb_table message, batch, compression;
	struct block block;
	int64_t length;

	snprintf(a->batch, sizeof(a->batch), "Arrow batch %" PRIu32, i);
	if (!read_block(a, i, &block) || !read_message(a, &block, &message) ||
		!check_message(a, &block, &message, &batch) ||
		!fb_table(&a->message, &batch, BATCH_COMPRESSION, "compression", &compression))
		return false;
	if (compression.at)
		return refuse_compressed(a, &compression);
	if (!fb_integer(&a->message, &batch, BATCH_LENGTH, 8, "length", &length))
		return false;
	if (length < 0)
		return arrow_refuse(
			a, "%s: length is %" PRId64 "; must be 0 or more", a->batch, length);
	*rows = (uint64_t)length;
	return check_node(a, &batch, length) && find_values(a, &block, &batch, *rows, at);
}
