/*
 * datatrove's .ds (nanotron): tokens without a header, u16 or u32. Optional side files: X.ds.index
 * has the end of each document as a u64, in tokens. X.ds.metadata is text: line 1 ends in the width
 * of a token, line 2 is the number of tokens. Older metadata has no width. Both files must agree
 * with the size of the shard.
 */
#include "daemon/shard/format.h"
#include "daemon/shard/map.h"
#include "proto/phrases.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { METADATA_MOST = 4096 /* bytes that are read */ };

static bool datatrove_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".ds");
}

/* Reads the end of the last document; 0: there is none. */
static bool last_end(const struct bytes *index, uint64_t *last, struct fault *fault)
{
	uint8_t end[8] = {0};

	if (index->size % 8 != 0)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: %" PRIu64
			" bytes is not a multiple of 8: the file is truncated",
			index->size);
	if (index->size > 0 && !bytes_read(index, index->size - 8, end, 8, fault))
		return false;
	*last = bytes_u64(end);
	return true;
}

/* Reads the ends of all documents, which ascend to @tokens, and adds them to @map. */
static bool read_ends(
	const struct bytes *index, uint64_t tokens, struct map *map, struct fault *fault)
{
	struct bytes_array ends = {.b = index, .count = index->size / 8, .width = 8};
	uint64_t last = 0;

	for (uint64_t i = 0; i < ends.count; i++) {
		const uint8_t *item = bytes_item(&ends, i, fault);

		if (!item)
			return false;
		uint64_t end = bytes_u64(item);

		if (end < last)
			return fault_set(fault, FAULT_DATA, "",
				".ds.index: document %" PRIu64 " ends at token %" PRIu64
				", before the previous one (%" PRIu64 "); ends must ascend",
				i, end, last);
		if (end > tokens)
			return fault_set(fault, FAULT_DATA, "",
				".ds.index: document %" PRIu64 " ends at token %" PRIu64
				"; the file has %" PRIu64,
				i, end, tokens);
		if (!map_add(map, last * map->width, end - last, false))
			return fault_memory(fault);
		last = end;
	}
	return last == tokens || fault_set(fault, FAULT_DATA, "", ".ds.index: " PHRASE_CHANGED);
}

/* Reads the width of a token and the number of tokens; SHARD_UNKNOWN: it does not say. */
static bool read_metadata(
	const struct bytes *b, uint64_t *width, uint64_t *count, struct fault *fault)
{
	char path[PATH_MAX], text[METADATA_MOST + 1];
	struct bytes *file;

	*width = *count = SHARD_UNKNOWN;
	if (!bytes_side_path(b->path, ".ds", ".ds.metadata", path, sizeof(path)))
		return true; /* a shard of another name has no side files */
	if (!bytes_open_side(b, path, &file, fault))
		return false;
	if (!file)
		return true;
	size_t n = file->size < METADATA_MOST ? file->size : METADATA_MOST;
	bool fine = bytes_read(file, 0, text, n, fault);

	bytes_close(file);
	if (!fine)
		return false;
	text[n] = 0;
	char *line = text + strcspn(text, "\n");

	if (*line && sscanf(line, "\n%" SCNu64, count) != 1)
		*count = SHARD_UNKNOWN;
	*line = 0;
	const char *bar = strrchr(text, '|');

	if (bar && (bar[1] == '2' || bar[1] == '4') && (bar[2] == 0 || bar[2] == '\r'))
		*width = (uint64_t)(bar[1] - '0');
	return true;
}

/*
 * The width of a token: that of a manifest or the metadata; otherwise the file's size divided by
 * the number of tokens, if the index has that; otherwise the config's.
 */
static uint64_t width_of(
	const struct bytes *b, const struct shard_hint *hint, uint64_t width, uint64_t last)
{
	if (hint->listed)
		return shard_type_bytes(hint->listed->type);
	if (width != SHARD_UNKNOWN)
		return width;
	if (last > 0 && (b->size == 2 * last || b->size == 4 * last))
		return b->size / last;
	return shard_type_bytes(hint->type);
}

static bool datatrove_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	uint64_t last = 0, width = SHARD_UNKNOWN, count = SHARD_UNKNOWN;

	/* A manifest has what the metadata say. */
	if ((!hint->listed && !read_metadata(b, &width, &count, fault)) ||
		(index && !last_end(index, &last, fault)))
		return false;
	width = width_of(b, hint, width, last);
	if (b->size % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " bytes is not a multiple of %" PRIu64
			", the token size; the file is truncated, or dtype is wrong",
			b->size, width);
	facts->type = width == 2 ? SHARD_U16 : SHARD_U32;
	facts->tokens = b->size / width;
	if (count != SHARD_UNKNOWN && count != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: token count is %" PRIu64 "; the file has %" PRIu64
			" tokens of %" PRIu64 " bytes",
			count, facts->tokens, width);
	if (map)
		map->width = (uint32_t)width;
	if (!index)
		return !map || map_add(map, 0, facts->tokens, false) || fault_memory(fault);
	facts->documents = index->size / 8;
	if (last != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: the last document ends at token %" PRIu64
			"; the file has %" PRIu64 " tokens of %" PRIu64 " bytes",
			last, facts->tokens, width);
	return !map || read_ends(index, facts->tokens, map, fault);
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
