#include "daemon/shard/arrow_batch.h"

enum {
	NODE_BYTES = 16,
	BUFFER_BYTES = 16,
};

/* Numbers of the fields of a batch that are read. */
enum { BATCH_LENGTH, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION, BATCH_VARIADIC };
enum { COMPRESSION_CODEC };

/* A range of a batch's body. */
struct range {
	uint64_t at, bytes;
};

static bool refuse_compressed(struct arrow *a, const struct fb_table *compression)
{
	int64_t codec;

	if (!fb_integer(&a->message, compression, COMPRESSION_CODEC, 1, "codec", &codec))
		return false;
	return arrow_refuse(a,
		"%s: its body is compressed (%s), which is not supported; convert it: python -m "
		"tokend tokenize --column %s -o DIR FILE",
		a->batch,
		codec == 0   ? "LZ4_FRAME"
		: codec == 1 ? "ZSTD"
			     : "an unknown codec",
		a->name);
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

/* The length of node @i of our column's, which must not have nulls unless @nulls is given. */
static bool read_node(
	struct arrow *a, const struct fb_vector *nodes, unsigned i, int64_t *length, int64_t *nulls)
{
	const uint8_t *p;
	int64_t count;

	if (!fb_bytes(&a->message, nodes->at + ((uint64_t)a->before.fields + i) * NODE_BYTES,
		    NODE_BYTES, "nodes", &p))
		return false;
	*length = (int64_t)bytes_u64(p);
	count = (int64_t)bytes_u64(p + 8);
	if (nulls)
		*nulls = count;
	return nulls || count == 0 ||
	       arrow_refuse(a,
		       "%s: null_count of column '%s'%s is %" PRId64
		       "; must be 0: every %s is a token",
		       a->batch, a->name, i ? "'s items" : "", count, i ? "item" : "row");
}

/* Our column's node must have as many rows as the batch. *@items: the length of its lists' child.
 */
static bool read_nodes(
	struct arrow *a, const struct fb_table *batch, struct arrow_batch *to, uint64_t *items)
{
	bool lists = a->column.list == ARROW_LIST || a->column.list == ARROW_LARGE_LIST;
	int64_t length, rows = (int64_t)to->rows, nulls = 0, child;
	struct fb_vector nodes;

	if (!fb_vector(&a->message, batch, BATCH_NODES, NODE_BYTES, "nodes", &nodes))
		return false;
	if (nodes.count != a->all.fields)
		return arrow_refuse(a, "%s: nodes has %" PRIu32 " items; its columns need %" PRIu32,
			a->batch, nodes.count, a->all.fields);
	if (!read_node(a, &nodes, 0, &length, lists ? &nulls : NULL))
		return false;
	if (length != rows)
		return arrow_refuse(a,
			"%s: length of column '%s' is %" PRId64 "; must be %" PRId64
			", as the batch's",
			a->batch, a->name, length, rows);
	if (nulls < 0 || nulls > rows)
		return arrow_refuse(a,
			"%s: null_count of column '%s' is %" PRId64 "; must be 0 to %" PRId64,
			a->batch, a->name, nulls, rows);
	to->nulls = nulls > 0;
	*items = to->rows;
	if (a->column.list == ARROW_FLAT)
		return true;
	if (!read_node(a, &nodes, 1, &child, NULL))
		return false;
	*items = (uint64_t)child;
	return child >= 0 ||
	       arrow_refuse(a, "%s: length of column '%s's items is %" PRId64 "; must be 0 or more",
		       a->batch, a->name, child);
}

/*
 * A column without nulls may have a validity bitmap. All its bits must be set: the value of a null
 * row is undefined.
 */
static bool check_validity(
	struct arrow *a, const struct arrow_block *block, const struct range *range, uint64_t rows)
{
	uint64_t bytes = (rows + 7) / 8, body = block->begin + block->metadata;
	uint64_t offset = range->at, length = range->bytes;
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

/* Reads the ranges of our column's first @n buffers. */
static bool read_ranges(
	struct arrow *a, const struct fb_table *batch, struct range *range, unsigned n)
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
	if (!fb_bytes(&a->message, buffers.at + before * BUFFER_BYTES, n * BUFFER_BYTES, "buffers",
		    &p))
		return false;
	for (unsigned i = 0; i < n; i++, p += BUFFER_BYTES)
		range[i] = (struct range){bytes_u64(p), bytes_u64(p + 8)};
	return true;
}

/* Requires a range that holds @items items of @width bytes. @what: "values". */
static bool check_range(struct arrow *a, const struct arrow_block *block, const struct range *range,
	const char *what, uint64_t items, uint32_t width, const char *type)
{
	if (range->at > block->body || range->bytes > block->body - range->at || range->at % 8 != 0)
		return arrow_refuse(a,
			"%s: %s of column '%s' are %" PRId64 " bytes from byte %" PRId64
			" of the body on; must begin at a multiple of 8 and stay within its "
			"%" PRIu64 " bytes",
			a->batch, what, a->name, (int64_t)range->bytes, (int64_t)range->at,
			block->body);
	return items <= range->bytes / width ||
	       arrow_refuse(a,
		       "%s: length is %" PRIu64 " %s, but the %s of column '%s' have %" PRIu64
		       " bytes, which is %" PRIu64 " of %s",
		       a->batch, items, a->column.list == ARROW_FLAT ? "rows" : "items", what,
		       a->name, range->bytes, range->bytes / width, type);
}

/* Reads the first and the last offset of a batch's lists: its tokens are between them. */
static bool read_ends(struct arrow *a, uint64_t items, struct arrow_batch *to, uint64_t *first)
{
	uint32_t width = a->column.list == ARROW_LIST ? 4 : 8;
	uint8_t begin[8], end[8];

	*first = to->tokens = 0;
	if (to->rows == 0)
		return true;
	if (!bytes_read(a->b, to->lists_at, begin, width, a->fault) ||
		!bytes_read(a->b, to->lists_at + to->rows * width, end, width, a->fault))
		return false;
	int64_t from = width == 4 ? (int32_t)bytes_u32(begin) : (int64_t)bytes_u64(begin);
	int64_t until = width == 4 ? (int32_t)bytes_u32(end) : (int64_t)bytes_u64(end);

	if (from < 0 || until < from || (uint64_t)until > items)
		return arrow_refuse(a,
			"%s: offsets of column '%s' begin with %" PRId64 " and end with %" PRId64
			"; must ascend within 0 to %" PRIu64 ", its number of items",
			a->batch, a->name, from, until, items);
	*first = (uint64_t)from;
	to->tokens = (uint64_t)(until - from);
	return true;
}

/* The lists of @to->rows rows have the items [*@first, *@first + to->tokens). */
static bool find_lists(struct arrow *a, const struct arrow_block *block, const struct range *range,
	uint64_t items, struct arrow_batch *to, uint64_t *first)
{
	uint64_t body = block->begin + block->metadata;
	uint32_t width = a->column.list == ARROW_LIST ? 4 : 8;

	if (a->column.list == ARROW_FIXED_LIST) {
		*first = 0;
		if (!check_validity(a, block, &range[0], to->rows))
			return false;
		return (!__builtin_mul_overflow(to->rows, a->column.list_size, &to->tokens) &&
			       to->tokens <= items) ||
		       arrow_refuse(a,
			       "%s: %" PRIu64 " lists of %" PRIu64
			       " tokens are in column '%s', but it has %" PRIu64 " items",
			       a->batch, to->rows, a->column.list_size, a->name, items);
	}
	if (to->rows > 0 && !check_range(a, block, &range[1], "offsets", to->rows + 1, width,
				    width == 4 ? "int32" : "int64"))
		return false;
	if (to->nulls && range[0].bytes == 0)
		return arrow_refuse(
			a, "%s: column '%s' has nulls, but no validity", a->batch, a->name);
	if (range[0].bytes > 0 &&
		(range[0].at > block->body || range[0].bytes > block->body - range[0].at ||
			range[0].bytes < (to->rows + 7) / 8))
		return arrow_refuse(a,
			"%s: validity of column '%s' is %" PRId64 " bytes from byte %" PRId64
			" of the body on; must be at least %" PRIu64 " and within its %" PRIu64
			" bytes",
			a->batch, a->name, (int64_t)range[0].bytes, (int64_t)range[0].at,
			(to->rows + 7) / 8, block->body);
	to->lists_at = body + range[1].at;
	to->valid_at = range[0].bytes > 0 ? body + range[0].at : 0;
	return read_ends(a, items, to, first);
}

/* Finds our column's tokens in the batch's body. */
static bool find_tokens(struct arrow *a, const struct arrow_block *block,
	const struct fb_table *batch, struct arrow_batch *to)
{
	static const unsigned buffers[] = {
		[ARROW_FLAT] = 2, [ARROW_LIST] = 4, [ARROW_LARGE_LIST] = 4, [ARROW_FIXED_LIST] = 3};
	unsigned n = buffers[a->column.list];
	uint32_t width = shard_type_bytes(a->column.type);
	struct range range[4];
	uint64_t items, first = 0;

	if (!read_nodes(a, batch, to, &items) || !read_ranges(a, batch, range, n) ||
		!check_range(a, block, &range[n - 1], "values", items, width,
			shard_type_name(a->column.type)))
		return false;
	to->tokens = items;
	if (a->column.list != ARROW_FLAT && !find_lists(a, block, range, items, to, &first))
		return false;
	to->at = block->begin + block->metadata + range[n - 1].at + first * width;
	return check_validity(a, block, &range[n - 2], items);
}

bool arrow_next(struct arrow *a, struct arrow_batch *to, bool *end)
{
	struct fb_table batch, compression;
	struct arrow_block block;
	int64_t length;

	*to = (struct arrow_batch){0};
	if (!arrow_next_message(a, &block, &batch, end))
		return false;
	if (*end)
		return true;
	if (!fb_table(&a->message, &batch, BATCH_COMPRESSION, "compression", &compression))
		return false;
	if (compression.at)
		return refuse_compressed(a, &compression);
	if (!fb_integer(&a->message, &batch, BATCH_LENGTH, 8, "length", &length))
		return false;
	if (length < 0)
		return arrow_refuse(
			a, "%s: length is %" PRId64 "; must be 0 or more", a->batch, length);
	to->rows = (uint64_t)length;
	return find_tokens(a, &block, &batch, to);
}
