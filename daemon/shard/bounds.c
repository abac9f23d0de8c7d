#include "daemon/shard/bounds.h"

#include "daemon/shard/bytes.h"
#include "daemon/shard/map.h"
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
enum { CHUNK = 64 * 1024, FIELD_MOST = 24 /* more digits than any number below 2^64 */ };

struct bounds {
	struct map map; /* of all tokens, each a byte */
	uint64_t documents, tokens, outside;
	uint32_t id;
};

/* The state of reading a file. */
struct reading {
	struct bounds *bounds;
	const char *name; /* of the file, without its directories */
	struct fault *fault;
	z_stream z;
	bool cr; /* the last byte was a CR: skip its LF */
	bool quoted,
		quote; /* in a quoted field; the last byte was a quote, which may have ended it */
	bool any;      /* the row has bytes */
	unsigned field, length;
	bool open;		      /* the field may begin with a quote */
	char text[2][FIELD_MOST + 1]; /* of the first two fields */
	uint64_t row, before;	      /* number of the row; end of the document before it */
};

static bool side_path(const char *shard, char *path, size_t path_bytes)
{
	return bytes_side_path(shard, ".npy", BOUNDS_ENDING, path, path_bytes) ||
	       bytes_side_path(shard, ".bin", BOUNDS_ENDING, path, path_bytes);
}

/* Errors that may pass: the file itself may be unchanged. */
static bool may_pass(int error)
{
	return error == EIO || error == ESTALE || error == ETIMEDOUT || error == ENOMEM;
}

bool bounds_side_id(
	const struct objects *objects, const char *shard, uint32_t *id, struct fault *fault)
{
	char path[PATH_MAX];
	struct object object;
	struct stat st;
	int error;

	*id = 0;
	if (!side_path(shard, path, sizeof(path)))
		return true;
	if (objects) {
		if (objects->find(objects->context, path, &object))
			*id = bytes_object_id(&object);
		return true;
	}
	if (stat(path, &st) == 0) {
		*id = bytes_id(&st);
		return true;
	}
	error = errno;
	if (may_pass(error))
		return fault_errno(
			fault, error, "", "its list of document bounds: %s", strerror(error));
	/* Other errors, a dangling link included, are reported when it is opened. */
	*id = error == ENOENT && lstat(path, &st) != 0 ? 0 : 1;
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

/* ---- documents and gaps ---- */

/* Adds a document and the gap before it. */
static bool add_document(struct bounds *b, uint64_t start, uint64_t end)
{
	b->documents++;
	if (start == end)
		return true;
	b->outside += start - b->map.tokens;
	return map_add(&b->map, b->map.tokens, start - b->map.tokens, true) &&
	       map_add(&b->map, start, end - start, false);
}

static bool finish(struct bounds *b)
{
	uint64_t left = b->tokens - b->map.tokens;

	b->outside += left;
	return map_add(&b->map, b->map.tokens, left, true) && map_done(&b->map);
}

uint32_t bounds_id(const struct bounds *b)
{
	return b->id;
}

uint64_t bounds_documents(const struct bounds *b)
{
	return b->documents;
}

uint64_t bounds_outside(const struct bounds *b)
{
	return b->outside;
}

uint64_t bounds_bytes(const struct bounds *b)
{
	return sizeof(*b) + map_bytes(&b->map);
}

uint64_t bounds_next(const struct bounds *b, uint64_t token)
{
	return map_find(&b->map, token).end;
}

void bounds_mask(const struct bounds *b, uint64_t token, uint64_t n, uint8_t *to)
{
	uint64_t at = token, end = token + n;

	if (n == 0)
		return;
	for (struct map_span s = map_find(&b->map, token);; map_step(&b->map, &s)) {
		uint64_t last = s.end < end ? s.end : end;

		if (s.gap)
			memset(to + (at - token), 0, last - at);
		at = last;
		if (at == end)
			return;
	}
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
	bool fine = r->field >= field && text[0] != 0;

	*value = 0;
	for (const char *c = text; *c && fine; c++)
		fine = *c >= '0' && *c <= '9' && !__builtin_mul_overflow(*value, 10, value) &&
		       !__builtin_add_overflow(*value, (uint64_t)(*c - '0'), value);
	return fine || refuse(r, NOT_A_NUMBER, name, text);
}

static bool end_row(struct reading *r)
{
	struct bounds *b = r->bounds;
	uint64_t start, end;

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
	if (end > b->tokens)
		return refuse(r,
			"end is %" PRIu64 "; must be at most %" PRIu64
			", the number of tokens in the shard",
			end, b->tokens);
	if (!add_document(b, start, end))
		return refuse_memory(r);
	r->before = end;
	return true;
}

static void begin_field(struct reading *r, unsigned field)
{
	r->field = field;
	r->length = 0;
	r->open = true;
	r->quoted = r->quote = false;
	if (field < 2)
		r->text[field][0] = 0;
}

static void begin_row(struct reading *r)
{
	r->any = false;
	r->row++;
	begin_field(r, 0);
	r->text[1][0] = 0;
}

/*
 * Appends a character to the field. Unprintable characters become '?'. The third and later fields
 * are ignored. Stops at the first digit too many: a small gzip file may hold a very long field.
 */
static bool keep(struct reading *r, char c)
{
	if (r->field >= 2)
		return true;
	if (r->length == FIELD_MOST)
		return refuse(r, NOT_A_NUMBER, r->field ? "end" : "start", r->text[r->field]);
	r->text[r->field][r->length++] = c >= ' ' && c <= '~' ? c : '?';
	r->text[r->field][r->length] = 0;
	return true;
}

static bool take(struct reading *r, char c)
{
	bool lf = r->cr && c == '\n';

	r->cr = false;
	if (lf)
		return true;
	r->any = true;
	if (r->quoted && !r->quote && c != '"')
		return keep(r, c);
	if (c == '"' && r->open) {
		r->quoted = true;
		r->open = false;
		return true;
	}
	if (c == '"' && r->quoted) { /* a quote ends the field; two quotes are one character */
		r->quote = !r->quote;
		return r->quote || keep(r, c);
	}
	r->quoted = r->quote = r->open = false;
	if (c == ',') {
		begin_field(r, r->field + (r->field < 2));
		return true;
	}
	if (c != '\n' && c != '\r')
		return keep(r, c);
	r->cr = c == '\r';
	if (!end_row(r))
		return false;
	begin_row(r);
	return true;
}

/* After the last byte. */
static bool end_text(struct reading *r)
{
	if (r->quoted && !r->quote)
		return refuse(r, "%s", "ends inside quotes: the file is truncated");
	return !r->any || end_row(r);
}

/* ---- gzip ---- */

static bool refuse_file(const struct reading *r, const char *what)
{
	return fault_set(r->fault, FAULT_DATA, "", "%.200s: %s", r->name, what);
}

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
	unsigned char *packed = malloc(CHUNK);
	bool fine = packed || refuse_memory(r), ended = false;

	for (uint64_t at = 0; fine && at < file->size; at += CHUNK) {
		uint64_t left = file->size - at;

		r->z.next_in = packed;
		r->z.avail_in = left < CHUNK ? (unsigned)left : CHUNK;
		if (ended)
			inflateReset(&r->z);
		fine = bytes_read(file, at, packed, r->z.avail_in, r->fault)
			       ? inflate_chunk(r, &ended)
			       : fault_prefix(r->fault, "%.200s: ", r->name);
	}
	free(packed);
	return fine && (ended || refuse_file(r, "is truncated: it ends within its gzip data")) &&
	       end_text(r);
}

static bool read_file(struct reading *r, const struct bytes *file)
{
	if (inflateInit2(&r->z, 16 + MAX_WBITS) != Z_OK) /* 16: gzip only */
		return refuse_memory(r);
	begin_row(r);
	bool fine = read_all(r, file) && (finish(r->bounds) || refuse_memory(r));

	inflateEnd(&r->z);
	return fine;
}

bool bounds_open(
	const struct bytes *shard, uint64_t tokens, struct bounds **bounds, struct fault *fault)
{
	char path[PATH_MAX];

	*bounds = NULL;
	if (!side_path(shard->path, path, sizeof(path)))
		return true;
	struct bytes *file;

	if (!bytes_open_side(shard, path, &file, fault))
		return false;
	if (!file)
		return true;
	struct bounds *b = calloc(1, sizeof(*b));
	struct reading r = {.bounds = b, .name = name_of(path), .fault = fault};
	bool fine = b != NULL;

	if (b) {
		b->tokens = tokens;
		b->map.width = 1;
		b->id = file->id;
		fine = read_file(&r, file) && bytes_settled(file, fault);
	} else {
		refuse_memory(&r);
	}
	bytes_close(file);
	if (fine)
		*bounds = b;
	else
		bounds_close(b);
	return fine;
}

void bounds_close(struct bounds *b)
{
	if (!b)
		return;
	map_free(&b->map);
	free(b);
}
