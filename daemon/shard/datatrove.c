/*
 * datatrove's .ds (nanotron): tokens without a header, u16 or u32. Optional side files: X.ds.index
 * has the end of each document as a u64, in tokens. X.ds.metadata is text: line 1 ends in the width
 * of a token, line 2 is the number of tokens. Older metadata has no width. The side files must
 * agree with the size of the shard; values that are missing are derived from the others.
 */
#include "daemon/shard/format.h"
#include "daemon/shard/map.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
	METADATA_MOST = 64 * 1024,
	AT_ONCE = 4096, /* ends that are read at a time */
	SMALL = 1
		<< 16, /* bytes; indexes up to this size are checked when the shard is described */
};

/* The values in .ds.metadata. */
struct metadata {
	bool has_width, has_count;
	uint64_t width, count;
};

static bool datatrove_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".ds");
}

/* ---- metadata ---- */

/* Parses an integer from @text to @end, which may have trailing spaces and a CR. */
static bool number(const char *text, const char *end, uint64_t *value)
{
	bool any = false;

	*value = 0;
	while (end > text && (end[-1] == '\r' || end[-1] == ' '))
		end--;
	for (; text < end; text++, any = true)
		if (*text < '0' || *text > '9' || __builtin_mul_overflow(*value, 10, value) ||
			__builtin_add_overflow(*value, (uint64_t)(*text - '0'), value))
			return false;
	return any;
}

/* Reports that a field has the value @text, which has @n bytes. */
static bool refuse_line(
	const char *field, const char *text, size_t n, const char *wanted, struct fault *fault)
{
	char shown[41];

	return fault_set(fault, FAULT_DATA, "", ".ds.metadata: %s, is '%s'; must be %s", field,
		bytes_shown(text, n, shown, sizeof(shown)), wanted);
}

/*
 * Line 1 is "TOKENIZER|WIDTH"; the tokenizer's name may contain bars. Older files have no bar and
 * no width.
 */
static bool parse_metadata(const char *text, size_t n, struct metadata *m, struct fault *fault)
{
	const char *end = text + n, *first = memchr(text, '\n', n);

	if (!first)
		first = end;
	const char *bar = memrchr(text, '|', (size_t)(first - text));

	m->has_width = bar && number(bar + 1, first, &m->width);
	if (bar && !m->has_width && (bar + 1 == first || strchr("+-0123456789", bar[1])))
		return refuse_line(
			"token size, line 1", bar + 1, (size_t)(first - bar) - 1, "2 or 4", fault);
	if (m->has_width && m->width != 2 && m->width != 4)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: token size, line 1, is %" PRIu64 "; must be 2 or 4",
			m->width);
	if (first == end)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: its %zu bytes have no line 2, the token count: the file is "
			"truncated",
			n);
	const char *line = first + 1, *second = memchr(line, '\n', (size_t)(end - line));

	if (!second)
		second = end;
	m->has_count = number(line, second, &m->count);
	return m->has_count || refuse_line("token count, line 2", line, (size_t)(second - line),
				       "an integer", fault);
}

static bool read_metadata(const struct bytes *b, struct metadata *m, struct fault *fault)
{
	char path[PATH_MAX];
	struct bytes *file;

	*m = (struct metadata){0};
	if (!bytes_side_path(b->path, ".ds", ".ds.metadata", path, sizeof(path)))
		return true; /* a shard of another name has no side files */
	if (!bytes_open_side(b, path, &file, fault))
		return false;
	if (!file)
		return true;
	char *text = NULL;
	bool fine = false;

	if (file->size > METADATA_MOST) {
		fault_set(fault, FAULT_DATA, "",
			".ds.metadata: its size is %" PRIu64 " bytes; must be at most %d",
			file->size, METADATA_MOST);
	} else {
		text = malloc(file->size + 1);
		fine = text ? bytes_read(file, 0, text, file->size, fault) &&
				       parse_metadata(text, file->size, m, fault)
			    : fault_memory(fault);
	}
	free(text);
	bytes_close(file);
	return fine;
}

/* ---- the index ---- */

/* Adds document @i, which ends before token @end. */
static bool take_end(struct map *map, uint64_t i, uint64_t at, uint64_t end, uint64_t tokens,
	struct fault *fault)
{
	if (end < at)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: document %" PRIu64 " ends at token %" PRIu64
			", before the previous one (%" PRIu64 "); ends must ascend",
			i, end, at);
	if (end > tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: document %" PRIu64 " ends at token %" PRIu64
			"; the file has %" PRIu64,
			i, end, tokens);
	return !map || map_add(map, at * map->width, end - at, false) || fault_memory(fault);
}

/* Reads the ends of all documents, and adds them to @map unless it is NULL. */
static bool read_ends(
	const struct bytes *index, uint64_t tokens, struct map *map, struct fault *fault)
{
	uint64_t count = index->size / 8, last = 0;
	uint8_t ends[8 * AT_ONCE];

	for (uint64_t i = 0; i < count; i++) {
		uint64_t left = count - i, n = left < AT_ONCE ? left : AT_ONCE, end;

		if (i % AT_ONCE == 0 && !bytes_read(index, 8 * i, ends, 8 * n, fault))
			return false;
		end = bytes_u64(ends + 8 * (i % AT_ONCE));
		if (!take_end(map, i, last, end, tokens, fault))
			return false;
		last = end;
	}
	return last == tokens || fault_set(fault, FAULT_DATA, "", ".ds.index: " PHRASE_CHANGED);
}

/* Reads the end of the last document. @index may be NULL. */
static bool last_end(const struct bytes *index, uint64_t *last, struct fault *fault)
{
	uint8_t end[8] = {0};

	if (index && index->size % 8 != 0)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: %" PRIu64
			" bytes is not a multiple of 8: the file is truncated",
			index->size);
	if (index && index->size > 0 && !bytes_read(index, index->size - 8, end, 8, fault))
		return false;
	*last = bytes_u64(end);
	return true;
}

/* ---- the shard ---- */

/*
 * The width of a token: that of a manifest or the metadata; otherwise the file's size divided by
 * the number of tokens, if the metadata or the index has that; otherwise the config's.
 */
static uint64_t width_of(const struct bytes *b, const struct shard_hint *hint,
	const struct metadata *m, uint64_t last)
{
	uint64_t count = m->has_count ? m->count : last;

	if (hint->listed)
		return shard_type_bytes(hint->listed->type);
	if (m->has_width)
		return m->width;
	if (count > 0 && b->size % count == 0 && (b->size / count == 2 || b->size / count == 4))
		return b->size / count;
	return shard_type_bytes(hint->type);
}

static bool datatrove_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct metadata m = {0};
	uint64_t last;

	/* A manifest has what the metadata say. */
	if ((!hint->listed && !read_metadata(b, &m, fault)) || !last_end(index, &last, fault))
		return false;
	uint64_t width = width_of(b, hint, &m, last);

	if (b->size % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " bytes is not a multiple of %" PRIu64 ", the token size%s",
			b->size, width,
			m.has_width ? " in .ds.metadata: the file is truncated"
				    : "; the file is truncated, or dtype is wrong");
	facts->type = width == 2 ? SHARD_U16 : SHARD_U32;
	facts->tokens = b->size / width;
	if (m.has_count && m.count != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: token count is %" PRIu64 "; the file has %" PRIu64
			" tokens of %" PRIu64 " bytes",
			m.count, facts->tokens, width);
	if (map)
		map->width = (uint32_t)width;
	if (!index)
		return !map || map_add(map, 0, facts->tokens, false) || fault_memory(fault);
	facts->documents = index->size / 8;
	if (last != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: the last document%s ends at token %" PRIu64
			"; the file has %" PRIu64 " tokens of %" PRIu64 " bytes",
			index->size == 0 ? " (there is none)" : "", last, facts->tokens, width);
	/* A damaged small index is refused even if documents are not requested. */
	return (!map && index->size > SMALL) || read_ends(index, facts->tokens, map, fault);
}

/* A merged .ds.metadata sums up all shards of a directory; no shard has its name. */
static const struct shard_companion companions[] = {
	{.ending = ".ds.index", .shard = ".ds", .kind = "a datatrove index"},
	{.ending = ".ds.loss", .shard = ".ds", .kind = "a datatrove loss mask"},
	{.ending = ".ds.metadata", .shard = "*.ds", .kind = "datatrove's metadata", .unread = true},
	{0},
};

static const struct shard_side_name index_name = {".ds", ".ds.index"},
				    mask_name = {".ds", ".ds.loss"};

const struct shard_format shard_datatrove = {
	.name = "datatrove",
	.recognise = datatrove_recognise,
	.raw = true,
	.scan = datatrove_scan,
	.indexed = true,
	.index = &index_name,
	.mask = &mask_name,
	.companions = companions,
};
