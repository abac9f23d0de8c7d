/* Side files of a shard: its index, its list of document bounds, and its loss mask. */
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { COMMENT = 10 /* its offset in a gzip header */, COMMENT_MOST = 100 };
enum { CHUNK = 32 * 1024, FIELD_MOST = 24 /* more digits than any number below 2^64 */ };

/* ---- any of them ---- */

/* Writes the path of the side file of the shard at @shard to @path. False: it has none. */
static bool side_path(enum side_kind side, const struct shard_format *format,
	const struct shard_hint *hint, const char *shard, char path[PATH_MAX])
{
	if (side == SIDE_MASK && hint->label_mask)
		return snprintf(path, PATH_MAX, "%s%s%s", hint->label_mask,
			       bytes_ends_in(hint->label_mask, "/") ? "" : "/",
			       shard + hint->root_bytes) < PATH_MAX;
	if (side == SIDE_BOUNDS && format->indexed)
		return false;
	const struct shard_companion *c =
		side == SIDE_BOUNDS ? shard_flat.companions : format->companions;

	for (; c && c->ending; c++)
		if (c->side == side && bytes_side_path(shard, c->shard, c->ending, path, PATH_MAX))
			return true;
	return false;
}

uint32_t side_id(enum side_kind side, const struct shard_format *format,
	const struct shard_hint *hint, const char *shard)
{
	const struct objects *objects = hint->objects;
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	if (!side_path(side, format, hint, shard, path))
		return 0;
	if (objects)
		return objects->find(objects->context, path, &object) ? bytes_object_id(&object)
								      : 0;
	if (stat(path, &st) == 0)
		return bytes_id(&st);
	return errno != ENOENT || lstat(path, &st) == 0; /* a dangling link */
}

bool side_open(enum side_kind side, const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, char path[PATH_MAX], struct bytes **file,
	struct fault *fault)
{
	*file = NULL;
	path[0] = 0;
	return !side_path(side, format, hint, shard->path, path) ||
	       bytes_open_side(shard, path, file, fault);
}

bool mask_open(const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, uint64_t tokens, struct bytes **mask, char **name,
	uint64_t *data_at, struct fault *fault)
{
	char path[PATH_MAX], text[80];

	*name = NULL;
	*data_at = 0;
	if (!side_open(SIDE_MASK, format, shard, hint, path, mask, fault))
		return false;
	if (!*mask)
		return !hint->label_mask ||
		       fault_data(fault,
			       "has no loss mask: %.300s does not exist; label_mask must have one "
			       "for each shard of the dataset",
			       path);
	bool fine = npy_recognise(*mask)
			    ? npy_bools(*mask, tokens, data_at, fault)
			    : (*mask)->size == tokens ||
				      fault_data(fault,
					      "its size is %" PRIu64 " bytes; must be %" PRIu64
					      ", one for each token of the shard",
					      (*mask)->size, tokens);

	(*mask)->path = NULL; /* it is here only */
	/* In label_mask it has the shard's own name, so say that it is the mask. */
	snprintf(text, sizeof(text), "%s%.60s", hint->label_mask ? "its loss mask " : "",
		bytes_name(path));
	if (fine && (*name = strdup(text)))
		return true;
	bytes_close(*mask);
	*mask = NULL;
	return fine ? fault_memory(fault) : fault_prefix(fault, "%s: ", text);
}

/* ---- lists of document bounds ---- */

bool bounds_rows(const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, uint64_t tokens, uint64_t *row_tokens, uint64_t *padding,
	struct fault *fault)
{
	char path[PATH_MAX], head[COMMENT + COMMENT_MOST] = {0};
	struct bytes *file;

	*row_tokens = *padding = 0;
	if (!side_open(SIDE_BOUNDS, format, shard, hint, path, &file, fault))
		return false;
	if (!file)
		return true;
	size_t n = file->size < sizeof(head) - 1 ? file->size : sizeof(head) - 1;
	bool fine = bytes_read(file, 0, head, n, fault) ||
		    fault_prefix(fault, "%.200s: ", bytes_name(path));

	bytes_close(file);
	if (!fine)
		return false;
	/* It has a comment, and no name before it. */
	if (memcmp(head, "\x1f\x8b\x08\x10", 4) != 0 ||
		sscanf(head + COMMENT, BOUNDS_ROWS, row_tokens, padding) != 2) {
		*row_tokens = *padding = 0;
		return true;
	}
	return (*row_tokens > 0 && tokens > 0 && tokens % *row_tokens == 0 && *padding <= tokens) ||
	       fault_data(fault,
		       "%.200s: is of another shard: it says rows of %" PRIu64
		       " tokens and %" PRIu64 " of padding, but the shard has %" PRIu64 " tokens",
		       bytes_name(path), *row_tokens, *padding, tokens);
}

/* The state of reading a list. */
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

#define NOT_A_NUMBER "%s is '%s'; must be " PHRASE_UINT64
/* refuse(r, text, …): a fault about the current row. */
#define refuse(r, text, ...)                                                                       \
	fault_data((r)->fault, "%.200s:%" PRIu64 ": " text, (r)->name, (r)->row, __VA_ARGS__)

static bool refuse_memory(const struct reading *r)
{
	fault_memory(r->fault);
	return fault_prefix(r->fault, "%.200s: ", r->name);
}

static bool number(struct reading *r, unsigned field, const char *name, uint64_t *value)
{
	const char *text = r->text[field];

	errno = 0;
	*value = strtoull(text, NULL, 10);
	return (*text && !text[strspn(text, "0123456789")] && errno == 0) ||
	       refuse(r, NOT_A_NUMBER, name, text);
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
	if (start < r->before || end < start)
		return refuse(r,
			"%s is %" PRIu64 "; must be at least %" PRIu64
			", the end of the previous row or its start: documents ascend",
			start < r->before ? "start" : "end", start < r->before ? start : end,
			start < r->before ? r->before : start);
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

/* Decodes and parses all gzip members of the file. */
static bool read_all(struct reading *r, const struct bytes *file)
{
	unsigned char packed[CHUNK], text[CHUNK];
	int done = Z_OK;

	for (uint64_t at = 0; at < file->size || r->z.avail_in > 0;) {
		if (r->z.avail_in == 0) {
			uint64_t left = file->size - at, n = left < CHUNK ? left : CHUNK;

			if (!bytes_read(file, at, packed, n, r->fault))
				return fault_prefix(r->fault, "%.200s: ", r->name);
			r->z.next_in = packed;
			r->z.avail_in = (unsigned)n;
			at += n;
		}
		if (done == Z_STREAM_END)
			inflateReset(&r->z);
		do {
			r->z.next_out = text;
			r->z.avail_out = sizeof(text);
			done = inflate(&r->z, Z_NO_FLUSH);
			if (done == Z_MEM_ERROR)
				return refuse_memory(r);
			if (done != Z_OK && done != Z_STREAM_END && done != Z_BUF_ERROR)
				return fault_data(r->fault,
					"%.200s: is not a gzip file, or is damaged: %s", r->name,
					r->z.msg ? r->z.msg : "bad data");
			for (unsigned char *c = text; c < r->z.next_out; c++)
				if (!take(r, (char)*c))
					return false;
		} while (r->z.avail_out == 0);
	}
	return done == Z_STREAM_END
		       ? finish(r)
		       : fault_data(r->fault, "%.200s: is truncated: it ends within its gzip data",
				 r->name);
}

bool bounds_read(const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, uint64_t tokens, struct map *map, uint64_t *documents,
	uint32_t *id, struct fault *fault)
{
	char path[PATH_MAX];
	struct reading r = {.map = map, .tokens = tokens, .fault = fault};
	struct bytes *file;

	*id = 0;
	if (!side_open(SIDE_BOUNDS, format, shard, hint, path, &file, fault))
		return false;
	if (!file)
		return true;
	r.name = bytes_name(path);
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
