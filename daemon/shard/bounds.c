#include "daemon/shard/bounds.h"

#include "daemon/shard/bytes.h"
#include "daemon/shard/map.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { COMMENT = 10 /* its offset in a gzip header */, COMMENT_MOST = 100 };
enum { CHUNK = 32 * 1024, FIELD_MOST = 24 /* more digits than any number below 2^64 */ };

/* The state of reading a file. */
struct reading {
	struct map *map; /* of all tokens, each a byte */
	uint64_t tokens, documents;
	const char *name; /* of the file, without its directories */
	struct fault *fault;
	z_stream z;
	bool quoted;	/* the next byte is inside quotes */
	unsigned field; /* 0, 1, or 2 for all others */
	char text[2][FIELD_MOST + 1];
	uint64_t row, before; /* number of the row; end of the document before it */
};

static bool side_path(const char *shard, char *path, size_t path_bytes)
{
	return bytes_side_path(shard, ".npy", BOUNDS_ENDING, path, path_bytes) ||
	       bytes_side_path(shard, ".bin", BOUNDS_ENDING, path, path_bytes);
}

bool bounds_side_id(
	const struct objects *objects, const char *shard, uint32_t *id, struct fault *fault)
{
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	*id = 0;
	if (!side_path(shard, path, sizeof(path)))
		return true;
	if (objects) {
		if (objects->find(objects->context, path, &object))
			*id = bytes_object_id(&object);
		return true;
	}
	if (stat(path, &st) == 0)
		*id = bytes_id(&st);
	else if (errno != ENOENT)
		return fault_errno(
			fault, errno, "", "its list of document bounds: %s", strerror(errno));
	else if (lstat(path, &st) == 0)
		*id = 1; /* a dangling link, which is reported when it is opened */
	return true;
}

static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool bounds_rows(const struct bytes *shard, uint64_t tokens, uint64_t *row_tokens,
	uint64_t *padding, struct fault *fault)
{
	char path[PATH_MAX], head[COMMENT + COMMENT_MOST] = {0};
	struct bytes *file = NULL;

	*row_tokens = *padding = 0;
	if (!side_path(shard->path, path, sizeof(path)))
		return true;
	if (!bytes_open_side(shard, path, &file, fault) || !file)
		return !file;
	size_t n = file->size < sizeof(head) - 1 ? file->size : sizeof(head) - 1;
	bool fine = bytes_read(file, 0, head, n, fault) ||
		    fault_prefix(fault, "%.200s: ", name_of(path));

	bytes_close(file);
	if (!fine)
		return false;
	if (memcmp(head, "\x1f\x8b\x08\x10", 4) !=
			0 || /* it has a comment, and no name before it */
		sscanf(head + COMMENT, BOUNDS_ROWS, row_tokens, padding) != 2) {
		*row_tokens = *padding = 0;
		return true;
	}
	return (*row_tokens > 0 && tokens > 0 && tokens % *row_tokens == 0 && *padding <= tokens) ||
	       fault_set(fault, FAULT_DATA, "",
		       "%.200s: is of another shard: it says rows of %" PRIu64
		       " tokens and %" PRIu64 " of padding, but the shard has %" PRIu64 " tokens",
		       name_of(path), *row_tokens, *padding, tokens);
}

/* ---- rows ---- */

#define NOT_A_NUMBER "%s is '%s'; must be " PHRASE_UINT64
/* refuse(r, text, …): a fault about the current row. */
#define refuse(r, text, ...)                                                                       \
	fault_set((r)->fault, FAULT_DATA, "", "%.200s:%" PRIu64 ": " text, (r)->name, (r)->row,    \
		__VA_ARGS__)

static bool refuse_memory(const struct reading *r)
{
	fault_memory(r->fault);
	return fault_prefix(r->fault, "%.200s: ", r->name);
}

static bool number(struct reading *r, unsigned field, const char *name, uint64_t *value)
{
	const char *text = r->text[field];
	bool fine = text[0] != 0;

	*value = 0;
	for (const char *c = text; *c && fine; c++)
		fine = *c >= '0' && *c <= '9' && !__builtin_mul_overflow(*value, 10, value) &&
		       !__builtin_add_overflow(*value, (uint64_t)(*c - '0'), value);
	return fine || refuse(r, NOT_A_NUMBER, name, text);
}

/* Adds a document and the gap before it. */
static bool add_document(struct reading *r, uint64_t start, uint64_t end)
{
	struct map *map = r->map;

	r->documents++;
	return start == end || (map_add(map, map->tokens, start - map->tokens, true) &&
				       map_add(map, start, end - start, false));
}

static bool end_row(struct reading *r)
{
	uint64_t start, end;

	if (r->field == 0 && r->text[0][0] == 0) /* an empty line, or the LF of CR LF */
		return true;
	r->row++;
	if (!number(r, 0, "start", &start) || !number(r, 1, "end", &end))
		return false;
	if (start < r->before)
		return refuse(r,
			"start is %" PRIu64 "; must be at least %" PRIu64
			", the end of the previous row: documents must ascend and not overlap",
			start, r->before);
	if (end < start)
		return refuse(r, "end is %" PRIu64 "; must be at least %" PRIu64 ", its start", end,
			start);
	if (end > r->tokens)
		return refuse(r,
			"end is %" PRIu64 "; must be at most %" PRIu64
			", the number of tokens in the shard",
			end, r->tokens);
	if (!add_document(r, start, end))
		return refuse_memory(r);
	r->before = end;
	r->field = 0;
	r->text[0][0] = r->text[1][0] = 0;
	return true;
}

/*
 * Takes a character of the text. A small gzip file may hold a very long field, so it stops at the
 * first digit too many.
 */
static bool take(struct reading *r, char c)
{
	r->quoted ^= c == '"'; /* twice for two quotes, which stand for one */
	if (!r->quoted && (c == '\n' || c == '\r'))
		return end_row(r);
	if (!r->quoted && c == ',')
		r->field += r->field < 2;
	else if (r->field < 2) {
		char *text = r->text[r->field];
		size_t n = strlen(text);

		if (n == FIELD_MOST) {
			r->row++;
			return refuse(r, NOT_A_NUMBER, r->field ? "end" : "start", text);
		}
		text[n] = c >= ' ' && c <= '~' ? c : '?';
		text[n + 1] = 0;
	}
	return true;
}

/* After the last byte: the tokens after the last document are outside documents. */
static bool finish(struct reading *r)
{
	struct map *map = r->map;

	r->row += r->quoted;
	if (r->quoted)
		return refuse(r, "%s", "ends inside quotes: the file is truncated");
	return end_row(r) &&
	       ((map_add(map, map->tokens, r->tokens - map->tokens, true) && map_done(map)) ||
		       refuse_memory(r));
}

/* ---- gzip ---- */

/* Decodes and parses the next bytes of the file. *@ended: they end a gzip member. */
static bool inflate_chunk(struct reading *r, bool *ended)
{
	unsigned char text[CHUNK];

	do {
		r->z.next_out = text;
		r->z.avail_out = sizeof(text);
		int done = inflate(&r->z, Z_NO_FLUSH);

		if (done == Z_MEM_ERROR)
			return refuse_memory(r);
		if (done != Z_OK && done != Z_STREAM_END && done != Z_BUF_ERROR)
			return fault_set(r->fault, FAULT_DATA, "",
				"%.200s: is not a gzip file, or is damaged: %s", r->name,
				r->z.msg ? r->z.msg : "bad data");
		for (unsigned char *c = text; c < r->z.next_out; c++)
			if (!take(r, (char)*c))
				return false;
		*ended = done == Z_STREAM_END;
		if (*ended && r->z.avail_in > 0)
			inflateReset(&r->z);
	} while (r->z.avail_in > 0 || r->z.avail_out == 0);
	return true;
}

static bool read_all(struct reading *r, const struct bytes *file)
{
	unsigned char packed[CHUNK];
	bool ended = false;

	for (uint64_t at = 0; at < file->size; at += CHUNK) {
		uint64_t left = file->size - at;

		r->z.next_in = packed;
		r->z.avail_in = left < CHUNK ? (unsigned)left : CHUNK;
		if (ended)
			inflateReset(&r->z);
		if (!bytes_read(file, at, packed, r->z.avail_in, r->fault))
			return fault_prefix(r->fault, "%.200s: ", r->name);
		if (!inflate_chunk(r, &ended))
			return false;
	}
	if (!ended)
		return fault_set(r->fault, FAULT_DATA, "",
			"%.200s: is truncated: it ends within its gzip data", r->name);
	return finish(r);
}

bool bounds_read(const struct bytes *shard, uint64_t tokens, struct map *map, uint64_t *documents,
	uint32_t *id, struct fault *fault)
{
	char path[PATH_MAX];
	struct reading r = {.map = map, .tokens = tokens, .fault = fault};
	struct bytes *file;

	*id = 0;
	if (!side_path(shard->path, path, sizeof(path)))
		return true;
	r.name = name_of(path);
	if (!bytes_open_side(shard, path, &file, fault))
		return false;
	if (!file)
		return true;
	map->width = 1;
	map->joins = false;
	*id = file->id;
	bool fine = inflateInit2(&r.z, 16 + MAX_WBITS) == Z_OK; /* 16: gzip only */

	if (!fine)
		refuse_memory(&r);
	fine = fine && read_all(&r, file) && bytes_settled(file, fault);
	inflateEnd(&r.z);
	bytes_close(file);
	*documents = r.documents;
	return fine;
}
