/*
 * datatrove's .ds (nanotron): tokens without a header, u16 or u32. Optional side files: X.ds.index
 * has the end of each document as a u64, in tokens. X.ds.metadata is text: line 1 ends in the width
 * of a token, line 2 is the number of tokens. Older metadata has no width. Both files must agree
 * with the size of the shard.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { METADATA_MOST = 4096 /* bytes that are read */ };

#define refuse(s, ...) fault_data((s)->fault, __VA_ARGS__)

/* Reads the ends of all documents, which ascend to the end of the shard, and adds them to the map.
 */
static bool read_ends(const struct shard_scan *s)
{
	struct bytes_array ends = {.b = s->index, .count = s->index->size / 8, .width = 8};
	uint64_t last = 0, tokens = s->b->size / s->map->width, n = ends.count, end;

	for (uint64_t i = 0; i < n; i++) {
		if (!bytes_next(&ends, &end, s->fault) ||
			!bytes_check(s->fault, end, last, tokens,
				".ds.index: the end of document %" PRIu64, i))
			return false;
		map_add(s->map, last * s->map->width, end - last, false);
		last = end;
	}
	return true;
}

/* Reads the number of tokens, and the width of a token, if it says that. */
static bool read_metadata(const struct shard_scan *s, uint64_t *width, uint64_t *count)
{
	char path[PATH_MAX], text[METADATA_MOST + 1], more[2];
	struct bytes *file;

	if (!bytes_side_path(s->b->path, ".ds", ".ds.metadata", path, sizeof(path)))
		return true; /* a shard of another name has no side files */
	if (!bytes_open_side(s->b, path, &file, s->fault))
		return false;
	if (!file)
		return true;
	size_t n = file->size < METADATA_MOST ? file->size : METADATA_MOST;
	bool fine = bytes_read(file, 0, text, n, s->fault);

	bytes_close(file);
	if (!fine)
		return false;
	text[n] = 0;
	char *line = text + strcspn(text, "\n");

	if (sscanf(line, "\n%" SCNu64 "%1[^ \r\n]", count, more) != 1)
		return refuse(s, ".ds.metadata: line 2 is not the number of tokens: it is "
				 "truncated or damaged");
	*line = 0;
	const char *bar = strrchr(text, '|');

	if (bar && (bar[1] == '2' || bar[1] == '4') && (bar[2] == 0 || bar[2] == '\r'))
		*width = (uint64_t)(bar[1] - '0');
	return true;
}

/*
 * The width of a token is that of the metadata; otherwise the file's size divided by the number of
 * tokens, if the index has that; otherwise the config's.
 */
static bool datatrove_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	uint64_t index = s->index ? s->index->size : 0, width = 0, count = SHARD_UNKNOWN;
	uint8_t end[8] = {0}; /* of the last document */

	if (index % 8 != 0)
		return refuse(s, ".ds.index: is truncated: its size is not a multiple of 8");
	if (!read_metadata(s, &width, &count) ||
		(index > 0 && !bytes_read(s->index, index - 8, end, 8, s->fault)))
		return false;
	uint64_t last = bytes_u64(end);

	if (width == 0 && last > 0 && b->size % last == 0)
		width = b->size / last;
	if (width != 2 && width != 4)
		width = shard_type_bytes(s->hint->type);
	if (width != 2 && width != 4)
		return refuse(s, "has tokens of 2 or 4 bytes; dtype must be u16 or u32");
	if (b->size % width != 0)
		return refuse(s,
			"is truncated, or dtype is wrong: its size is not a multiple of %" PRIu64,
			width);
	uint64_t tokens = b->size / width;

	facts->type = width == 2 ? SHARD_U16 : SHARD_U32;
	s->map->width = (uint32_t)width;
	if (count != SHARD_UNKNOWN &&
		!bytes_check(s->fault, count, tokens, tokens, ".ds.metadata: token count"))
		return false;
	if (s->index) {
		facts->documents = s->index->size / 8;
		if (!bytes_check(s->fault, last, tokens, tokens,
			    ".ds.index: the end of the last document"))
			return false;
		if (!s->map->counts)
			return read_ends(s);
	}
	map_add(s->map, 0, tokens, false);
	return true;
}

const struct shard_format shard_datatrove = {
	.name = "datatrove",
	.ending = ".ds",
	.raw = true,
	.scan = datatrove_scan,
	.indexed = true,
};
