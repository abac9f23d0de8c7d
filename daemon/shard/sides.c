/* Side files of a shard: its index, its list of document bounds, and its loss mask. */
#include "daemon/shard/format.h"
#include "proto/phrases.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { COMMENT = 10 /* its offset in a gzip header */, COMMENT_MOST = 100 };
enum { CHUNK = 32 * 1024, ROW_MOST = 42 /* two numbers and commas */ };

/* ---- any of them ---- */

/*
 * datatrove's merged metadata sums up all shards of a directory; no shard has its name. IBM's tools
 * keep the counts of all files in meta/, next to the directories of the files. Hugging Face's
 * datasets describes the files of a directory in two of JSON.
 */
const struct shard_companion shard_companions[] = {
	{".idx", ".bin", "a Megatron index", SIDE_INDEX, &shard_megatron},
	{".ds.index", ".ds", "a datatrove index", SIDE_INDEX, &shard_datatrove},
	{".ds.loss", ".ds", "a datatrove loss mask", SIDE_MASK, &shard_datatrove},
	{".ds.metadata", ".ds", "datatrove's metadata", SIDE_OTHER, NULL},
	{"/index.json", ".mds", "a Mosaic index by its name", SIDE_OTHER, &shard_mds},
	{"/dataset_info.json", ".arrow", "Hugging Face's description", SIDE_OTHER, NULL},
	{"/state.json", ".arrow", "Hugging Face's list of files", SIDE_OTHER, NULL},
	{"counts.csv", ".arrow", "a table of counts", SIDE_OTHER, NULL},
	{BOUNDS_ENDING, ".npy", "a list of document bounds", SIDE_BOUNDS, &shard_flat},
	{BOUNDS_ENDING, ".bin", "a list of document bounds", SIDE_BOUNDS, &shard_flat},
	{0},
};

bool side_is(const struct shard_companion *c, const char *path)
{
	/* "/index.json" is also the whole of a relative path. */
	return bytes_ends_in(path, c->ending) ||
	       (c->ending[0] == '/' && strcmp(path, c->ending + 1) == 0);
}

const struct shard_companion *side_kind(const char *path)
{
	const struct shard_companion *c = shard_companions;

	while (c->ending && !side_is(c, path))
		c++;
	return c->ending ? c : NULL;
}

bool side_name(const struct shard_companion *c, const char *shard, size_t *next, char to[PATH_MAX])
{
	size_t n = *next;

	if (n == 0 || !c->format || !bytes_ending(shard, c->shard))
		return false;
	*next = 0;
	if (c->ending[0] != '/')
		return bytes_side_path(shard, c->shard, c->ending, to, PATH_MAX);
	for (n--; n > 0 && shard[n - 1] != '/';)
		n--;
	*next = n;
	return snprintf(to, PATH_MAX, "%.*s%s", (int)n, shard, c->ending + 1) < PATH_MAX;
}

/* Writes the path of the side file of the shard at @shard to @path. False: it has none. */
static bool side_path(enum side_kind side, const struct shard_format *format,
	const struct shard_hint *hint, const char *shard, char path[PATH_MAX])
{
	if (side == SIDE_MASK && hint->label_mask)
		return snprintf(path, PATH_MAX, "%s%s%s", hint->label_mask,
			       bytes_ends_in(hint->label_mask, "/") ? "" : "/",
			       shard + hint->root_bytes) < PATH_MAX;
	if (side == SIDE_BOUNDS && !format->indexed)
		format = &shard_flat;
	for (const struct shard_companion *c = shard_companions; c->ending; c++)
		if (c->side == side && c->format == format &&
			side_name(c, shard, &(size_t){SIZE_MAX}, path))
			return true;
	return false;
}

uint64_t side_id(enum side_kind side, const struct shard_format *format,
	const struct shard_hint *hint, const char *shard)
{
	char path[PATH_MAX];

	return side_path(side, format, hint, shard, path) ? bytes_id_at(hint->objects, path) : 0;
}

bool side_open(enum side_kind side, const struct shard_format *format, const struct bytes *shard,
	const struct shard_hint *hint, char path[PATH_MAX], struct bytes **file,
	struct fault *fault)
{
	*file = NULL;
	return !side_path(side, format, hint, shard->path, path) ||
	       bytes_open_side(shard, path, file, fault);
}

bool mask_open(const struct shard_format *format, const struct shard_scan *s, struct bytes **mask)
{
	uint64_t tokens = s->facts->tokens;
	char path[PATH_MAX];

	if (!side_open(SIDE_MASK, format, s->b, s->hint, path, mask, s->fault))
		return false;
	if (!*mask)
		return !s->hint->label_mask ||
		       fault_data(s->fault,
			       "has no loss mask: %.300s does not exist; label_mask must have one "
			       "for each shard of the dataset",
			       path);
	s->facts->mask = (*mask)->id;
	return (*mask)->size == tokens ||
	       fault_data(s->fault,
		       "its loss mask: its size is %" PRIu64 " bytes; must be %" PRIu64
		       ", one for each token of the shard, without a header",
		       (*mask)->size, tokens);
}

/* ---- lists of document bounds ---- */

/* refuse(r, text, …): a fault about the current row. */
#define refuse(r, text, ...)                                                                       \
	fault_data((r)->fault, "row %" PRIu64 ": " text, (r)->documents + 1, ##__VA_ARGS__)

/* The state of reading a list. */
struct reading {
	struct map *map;	    /* of all tokens, each a byte */
	uint64_t tokens, documents; /* documents: rows that were read */
	struct fault *fault;
	z_stream z;
	bool quoted;		/* the next byte is inside quotes */
	char row[ROW_MOST + 1]; /* how it begins */
	unsigned n;		/* bytes of it that were read */
	uint64_t before;	/* end of the document before it */
};

/* Documents ascend, and end within the shard. */
static bool end_row(struct reading *r)
{
	uint64_t row = r->documents + 1;
	struct map *map = r->map;
	char *comma, *second, *rest;

	if (r->n == 0) /* an empty line, or the LF of CR LF */
		return true;
	r->row[r->n] = 0;
	uint64_t start = strtoull(r->row, &comma, 10);

	second = comma + (*comma == ',');
	uint64_t end = strtoull(second, &rest, 10);

	/* strtoull() accepts a sign and spaces; and what is longer was cut. */
	if (!isdigit((unsigned char)*r->row) || second == comma ||
		!isdigit((unsigned char)*second) || (start | end) > INT64_MAX ||
		(*rest != ',' && (rest != r->row + r->n || r->n == ROW_MOST)))
		return refuse(r, "must begin with a start and an end, each " PHRASE_UINT64);
	if (!bytes_check(r->fault, (int64_t)start, r->before, r->tokens, "row %" PRIu64 ": start",
		    row) ||
		!bytes_check(r->fault, (int64_t)end, start, r->tokens, "row %" PRIu64 ": end", row))
		return false;
	/* The gap before an empty document is added with the next one. */
	if (start < end) {
		map_add(map, map->tokens, start - map->tokens, true);
		map_add(map, start, end - start, false);
	}
	r->documents++;
	r->before = end;
	r->n = 0;
	return true;
}

static bool take(struct reading *r, char c)
{
	r->quoted ^= c == '"'; /* twice for two quotes, which stand for one */
	if (!r->quoted && (c == '\n' || c == '\r'))
		return end_row(r);
	if (r->n < ROW_MOST)
		r->row[r->n++] = c;
	return true;
}

/* Decodes and parses all gzip members of the file, which z has as its input. */
static bool read_members(struct reading *r)
{
	unsigned char text[CHUNK];

	for (int done = Z_OK; done == Z_OK || r->z.avail_in > 0;) {
		if (done == Z_STREAM_END)
			inflateReset(&r->z);
		r->z.next_out = text;
		r->z.avail_out = sizeof(text);
		done = inflate(&r->z, Z_NO_FLUSH);
		if (done == Z_MEM_ERROR)
			return fault_memory(r->fault);
		if (done == Z_BUF_ERROR)
			return fault_data(r->fault, "is truncated: it ends within its gzip data");
		if (done != Z_OK && done != Z_STREAM_END)
			return fault_data(r->fault, "is not a gzip file, or is damaged: %s",
				r->z.msg ? r->z.msg : "bad data");
		for (unsigned char *c = text; c < r->z.next_out; c++)
			if (!take(r, (char)*c))
				return false;
	}
	if (r->quoted)
		return refuse(r, "ends inside quotes: the file is truncated");
	if (!end_row(r))
		return false;
	/* The tokens after the last document are outside documents. */
	map_add(r->map, r->map->tokens, r->tokens - r->map->tokens, true);
	return map_done(r->map) || fault_memory(r->fault);
}

static bool read_list(const struct shard_scan *s, const struct bytes *file)
{
	struct shard_facts *facts = s->facts;
	struct reading r = {.map = s->map, .tokens = facts->tokens, .fault = s->fault};
	void *packed = bytes_check(s->fault, (int64_t)file->size, 0, UINT32_MAX, "its size")
			       ? bytes_load(file, 0, file->size, s->fault)
			       : NULL;

	s->map->width = 1;
	s->map->joins = false;
	r.z.next_in = packed;
	r.z.avail_in = (unsigned)file->size;
	bool fine = packed && (inflateInit2(&r.z, 16 + MAX_WBITS) == Z_OK || /* 16: gzip only */
				      fault_memory(s->fault));

	fine = fine && read_members(&r) && bytes_settled(file, s->fault);
	inflateEnd(&r.z);
	free(packed);
	facts->documents = r.documents;
	return fine && (facts->padding == 0 || facts->padding == s->map->outside ||
			       fault_data(s->fault,
				       "says %" PRIu64 " tokens of padding, but %" PRIu64
				       " are outside documents",
				       facts->padding, s->map->outside));
}

/* Rows that `tokctl pack --fit` made are samples, whether their list is asked for or not. */
static bool find_rows(const struct shard_scan *s, const struct bytes *file)
{
	struct shard_facts *facts = s->facts;
	char head[COMMENT + COMMENT_MOST] = {0};
	size_t n = file->size < sizeof(head) - 1 ? file->size : sizeof(head) - 1;
	uint64_t row, padding;

	if (!bytes_read(file, 0, head, n, s->fault))
		return false;
	/* It has a comment, and no name before it. */
	if (memcmp(head, "\x1f\x8b\x08\x10", 4) != 0 ||
		sscanf(head + COMMENT, BOUNDS_ROWS, &row, &padding) != 2)
		return true;
	if (row == 0 || facts->tokens == 0 || facts->tokens % row != 0 || padding > facts->tokens)
		return fault_data(s->fault,
			"is of another shard: it says rows of %" PRIu64 " tokens and %" PRIu64
			" of padding, but the shard has %" PRIu64 " tokens",
			row, padding, facts->tokens);
	facts->sample_tokens = row;
	facts->padding = padding;
	if (padding > 0 && !s->hint->loss_mask)
		snprintf(facts->note, sizeof(facts->note),
			"%.3f %% of it is padding, which is trained on; set loss_mask: true",
			100.0 * (double)padding / (double)facts->tokens);
	return true;
}

bool bounds_scan(const struct shard_scan *s)
{
	const struct shard_hint *hint = s->hint;
	bool asked = hint->documents || hint->loss_mask;
	char path[PATH_MAX];
	struct bytes *file;

	/* A list that is not asked for need not be readable. */
	if (!side_open(SIDE_BOUNDS, &shard_flat, s->b, hint, path, &file, s->fault))
		return !asked;
	if (!file)
		return true;
	bool fine = find_rows(s, file) && (!asked || s->map->counts || read_list(s, file));

	if (!fine)
		fault_prefix(s->fault, "%.200s: ", bytes_name(path));
	if (asked)
		s->facts->bounds = file->id;
	bytes_close(file);
	return fine || !asked;
}
