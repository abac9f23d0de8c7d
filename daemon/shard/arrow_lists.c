#include "daemon/shard/arrow_lists.h"

enum { AT_ONCE = 1024 }; /* lists; a multiple of 8 */

/* Some of a batch's lists: an offset for each and for the end of the last. */
struct lists {
	uint64_t first; /* number of the first one */
	uint64_t count;
	uint8_t offsets[8 * (AT_ONCE + 1)], valid[AT_ONCE / 8];
};

static bool read_lists(
	struct arrow *a, const struct arrow_batch *batch, uint32_t width, struct lists *to)
{
	uint64_t left = batch->rows - to->first;

	to->count = left < AT_ONCE ? left : AT_ONCE;
	memset(to->valid, 0xff, sizeof(to->valid));
	return bytes_read(a->b, batch->lists_at + to->first * width, to->offsets,
		       (to->count + 1) * width, a->fault) &&
	       (batch->valid_at == 0 || bytes_read(a->b, batch->valid_at + to->first / 8, to->valid,
						(to->count + 7) / 8, a->fault));
}

static int64_t offset(const struct lists *l, uint32_t width, uint64_t i)
{
	const uint8_t *p = l->offsets + i * width;

	return width == 4 ? (int32_t)bytes_u32(p) : (int64_t)bytes_u64(p);
}

/* *@end: where the last list ended. Offsets are read once, because the file may be changing. */
static bool add_some(struct arrow *a, const struct lists *l, uint32_t width, int64_t *end,
	uint64_t most, struct spans *spans)
{
	for (uint64_t i = 0; i < l->count; i++) {
		int64_t from = *end, until = offset(l, width, i + 1);
		uint64_t items = (uint64_t)until - (uint64_t)from, left = most - spans->end;

		if (until < from || items > left)
			return arrow_refuse(a,
				"%s: offset %" PRIu64 " of column '%s' is %" PRId64
				"; must be %" PRId64 " to %" PRId64 ": offsets ascend",
				a->batch, l->first + i + 1, a->name, until, from,
				(int64_t)((uint64_t)from + left));
		if (items > 0 && !(l->valid[i / 8] >> i % 8 & 1))
			return arrow_refuse(a,
				"%s: list %" PRIu64 " of column '%s' is null, but has %" PRIu64
				" items; must have none",
				a->batch, l->first + i, a->name, items);
		if (!spans_add(spans, spans->end + items, false))
			return fault_memory(a->fault);
		*end = until;
	}
	return true;
}

bool arrow_add_lists(struct arrow *a, const struct arrow_batch *batch, struct spans *spans)
{
	uint32_t width = a->column.list == ARROW_LIST ? 4 : 8;
	uint64_t most = spans->end + batch->tokens;
	struct lists l = {.first = 0};
	int64_t end = 0;

	for (; l.first < batch->rows; l.first += l.count) {
		if (!read_lists(a, batch, width, &l))
			return false;
		if (l.first == 0)
			end = offset(&l, width, 0);
		if (!add_some(a, &l, width, &end, most, spans))
			return false;
	}
	return spans->end == most ||
	       arrow_refuse(a,
		       "%s: lists of column '%s' have %" PRIu64 " items; must have %" PRIu64,
		       a->batch, a->name, batch->tokens - (most - spans->end), batch->tokens);
}
