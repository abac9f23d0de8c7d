/*
 * A manifest is the list of a dataset's shards and their facts, as `tokctl manifest` writes it.
 * Each line is a JSON object:
 *
 *   {"path":"a/b.npy","format":"npy","dtype":"u16","tokens":5000,"size":10128,
 *    "digest":"09af09af09af09af"}
 *
 * path is relative to the dataset's directory; lines are sorted by it, byte by byte. digest is a
 * hash of all tokens (client/ctl/offline/shards.h), which only tools that read the whole shard
 * compare. sample_tokens, row_tokens and frame_bytes follow if they are not 0, and the column of a
 * format that has some; they are as in struct shard_facts.
 *
 * For shards in a store, three more members follow. For local shards they are ignored, so that one
 * manifest serves both.
 *
 *   "etag":"b1946ac92492d2347c6235b4d2611184","data_at":128,
 *   "side":{"a/b.csv.gz":[4242,"591785b794601e212b260e25925636fd"]}
 *
 * etag is as the store reports it, without quotes; with it, digest may be absent. data_at is the
 * byte of a plain shard's first token. side has the size and ETag of each side file, by its path
 * below the dataset's directory; otherwise, in a directory label_mask, by its URL. Files on a disk
 * have no ETag: [4242].
 *
 * A manifest is untrusted: a path must stay below the root, and a number must be small enough that
 * computing with it cannot overflow.
 */
#include "daemon/catalog/opening.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	LINE_BYTES = 8 * PATH_MAX, /* a path may be escaped as \uXXXX */
	NUMBER_BITS = 60,	   /* times the widest token it still fits an offset */
};

#define TEXT_MOST (UINT64_C(4) << 30) /* bytes of an object */

struct reading {
	struct dataset *d;
	const char *key;     /* of the dataset; NULL: local */
	uint64_t line;	     /* 0: the whole file */
	struct fault *fault; /* "PATH:LINE: " is added at the end */
};

#define WRONG(r, ...) fault_set((r)->fault, FAULT_DATA, "", __VA_ARGS__)

/* ---- a line's members ---- */

struct line {
	const char *path, *format, *dtype, *digest, *column, *etag; /* borrowed; NULL: absent */
	struct shard_facts facts;
	uint64_t size;
	bool has_data_at;
	json_t *side; /* borrowed; NULL: absent */
};

/* Takes the known members; rejects others. */
static bool take_members(const struct reading *r, json_t *object, struct line *l)
{
	json_int_t tokens, size, sample = 0, row = 0, frame = 0, data_at = 0;
	json_error_t error;

	errno = 0;
	if (json_unpack_ex(object, &error, 0,
		    "{s:s, s:s, s:s, s:I, s:I, s?s, s?s, s?s, s?I, s?I, s?I, s?I, s?o!}", "path",
		    &l->path, "format", &l->format, "dtype", &l->dtype, "tokens", &tokens, "size",
		    &size, "digest", &l->digest, "column", &l->column, "etag", &l->etag,
		    "sample_tokens", &sample, "row_tokens", &row, "frame_bytes", &frame, "data_at",
		    &data_at, "side", &l->side) != 0)
		return errno == ENOMEM
			       ? fault_memory(r->fault)
			       : WRONG(r,
					 "%s; must have path, format, dtype, tokens and size, and "
					 "may have digest, column, sample_tokens, row_tokens, "
					 "frame_bytes, etag, data_at and side",
					 error.text);
	if ((uint64_t)(tokens | size | sample | row | frame | data_at) >> NUMBER_BITS)
		return WRONG(
			r, "has a number that is not an integer of 0 to 2^%d - 1", NUMBER_BITS);
	l->facts = (struct shard_facts){.tokens = (uint64_t)tokens,
		.sample_tokens = (uint64_t)sample,
		.row_tokens = (uint64_t)row,
		.frame_bytes = (uint64_t)frame,
		.data_at = (uint64_t)data_at};
	snprintf(l->facts.column, sizeof(l->facts.column), "%s", l->column ? l->column : "");
	l->size = (uint64_t)size;
	l->has_data_at = json_object_get(object, "data_at");
	/* The ETag is the identity of an object; without it, the digest is. */
	if (r->key && !l->etag)
		return WRONG(r, "etag is missing; must be the ETag of the object: write the "
				"manifest again with `tokctl manifest` and the URL");
	return l->etag || l->digest || WRONG(r, "digest is missing; must be a string");
}

bool manifest_name_ok(const char *name)
{
	for (;; name++) {
		size_t n = strcspn(name, "/");

		if (n == 0 || (n <= 2 && strncmp(name, "..", n) == 0))
			return false;
		name += n;
		if (!*name)
			return true;
	}
}

/* Whether the path @name, of a shard or as @what says, is below the dataset's directory. */
static bool check_path(const struct reading *r, const char *what, const char *name)
{
	return (manifest_name_ok(name) && strlen(r->d->list.root) + 1 + strlen(name) < PATH_MAX) ||
	       WRONG(r,
		       "%s '%.79s' is too long, or has a part that is empty, . or ..; must be a "
		       "file "
		       "below the dataset's directory",
		       what, name);
}

static bool check_order(const struct reading *r, const char *path)
{
	const struct shard_list *list = &r->d->list;

	return list->count == 0 || strcmp(shard_list_name(list, list->count - 1), path) < 0 ||
	       WRONG(r,
		       "path '%.79s' does not come after that of the line before; paths must be "
		       "unique, and lines sorted by them, byte by byte (LC_ALL=C sort)",
		       path);
}

/* Looks up the format and the type. */
static bool take_names(const struct reading *r, struct line *l, const struct shard_format **format)
{
	const struct config_dataset *config = r->d->config;
	const struct shard_format *set = config ? shard_format(config->format) : NULL;

	*format = shard_format(l->format);
	if (!*format)
		return WRONG(
			r, "format '%.39s' is unknown; must be one of: " SHARD_FORMATS, l->format);
	if (set && *format != set)
		return WRONG(r, "format is %s, but the config sets %s; must be the same", l->format,
			set->name);
	if (!l->column && (*format == &shard_arrow || *format == &shard_mds))
		return WRONG(r, "column is missing; write the manifest again");
	if (config && config->column && l->column && strcmp(config->column, l->column) != 0)
		return WRONG(r, "column is %.63s, but the config sets %.63s; must be the same",
			l->column, config->column);
	if (!shard_type(l->dtype, &l->facts.type))
		return WRONG(r,
			"dtype '%.39s' is unknown; must be u8, i8, u16, i16, u32, i32, u64 or i64",
			l->dtype);
	if (*format == &shard_flat && r->d->hint.has_type && l->facts.type != r->d->hint.type)
		return WRONG(r, "dtype is %s, but the config sets %s; must be the same", l->dtype,
			shard_type_name(r->d->hint.type));
	return !l->digest ||
	       (strlen(l->digest) == 16 && strspn(l->digest, "0123456789abcdef") == 16) ||
	       WRONG(r, "digest is '%.39s'; must be 16 hexadecimal digits", l->digest);
}

static bool check_numbers(const struct reading *r, const struct line *l)
{
	const struct shard_facts *f = &l->facts;
	uint64_t whole = f->sample_tokens ? f->sample_tokens : f->row_tokens,
		 budget = r->d->hint.budget_bytes, width = shard_type_bytes(f->type),
		 bytes = f->tokens * width, most = l->size > bytes ? l->size - bytes : 0;

	if ((f->sample_tokens && f->row_tokens) || (whole && f->tokens % whole))
		return WRONG(r,
			"tokens is %" PRIu64 "; must be a multiple of sample_tokens, %" PRIu64
			", or of row_tokens, %" PRIu64 "; one of them must be absent",
			f->tokens, f->sample_tokens, f->row_tokens);
	if (budget > 0 && f->frame_bytes > budget)
		return WRONG(r,
			"frame_bytes is %" PRIu64 "; must be at most %" PRIu64
			", a quarter of `memory`",
			f->frame_bytes, budget);
	/* The tokens of a plain shard end with its file, or before. */
	return !l->has_data_at || (f->frame_bytes == 0 && bytes <= l->size && f->data_at <= most) ||
	       WRONG(r,
		       "data_at is %" PRIu64 "; must be absent of a compressed shard, otherwise at "
		       "most %" PRIu64 ", so that the tokens fit into size",
		       f->data_at, most);
}

/* ---- members of shards in a store ---- */

bool manifest_etag_ok(const char *etag)
{
	size_t n = 0;

	while (etag[n] > ' ' && etag[n] <= '~' && etag[n] != '"')
		n++;
	return n > 0 && n < STORE_ETAG_BYTES && !etag[n] && strncmp(etag, "W/", 2) != 0;
}

/* @of: the shard or side file. */
static bool check_etag(const struct reading *r, const char *etag, const char *of)
{
	return manifest_etag_ok(etag) || WRONG(r,
						 "%.79s: etag is '%.127s'; must be a strong ETag "
						 "(without W/) of up to %d printable "
						 "characters, without spaces and quotes",
						 of, etag, STORE_ETAG_BYTES - 1);
}

/* If lines list a side file differently, the store refuses to read it, as it compares both. */
static bool take_side(const struct reading *r, const char *name, json_t *value)
{
	bool url = url_text_is(name);
	const char *etag = NULL;
	char key[LINE_BYTES];
	json_int_t size = -1;

	if (!url && !check_path(r, "side", name))
		return false;
	if ((json_unpack(value, "[Is!]", &size, &etag) != 0 &&
		    (r->key || json_unpack(value, "[I!]", &size) != 0)) ||
		size < 0)
		return WRONG(r,
			"side '%.79s' is %s; must be [SIZE, \"ETAG\"], the bytes and the ETag of "
			"the "
			"side file",
			name, json_is_array(value) ? "another array" : json_kind(value));
	if (etag && !check_etag(r, etag, name))
		return false;
	if (!r->key)
		return true;
	snprintf(key, sizeof(key), "%s%s", url ? "" : r->key, name);
	if (!r->d->sides)
		r->d->sides = json_object();
	return json_object_set_nocheck(r->d->sides, key, value) == 0 || fault_memory(r->fault);
}

static bool take_store(const struct reading *r, const struct line *l)
{
	const char *name;
	json_t *value;

	if (l->etag && !check_etag(r, l->etag, l->path))
		return false;
	if (l->side && !json_is_object(l->side))
		return WRONG(r,
			"side is %s; must be an object with [SIZE, \"ETAG\"] for each side file",
			json_kind(l->side));
	json_object_foreach(l->side, name, value) if (!take_side(r, name, value)) return false;
	return true;
}

/* ---- keeping a line ---- */

static bool keep(const struct reading *r, const struct line *l, const struct shard_format *format)
{
	struct dataset *d = r->d;
	uint64_t s = d->list.count;
	struct shard_facts facts = l->facts;

	/* As in shard.c. Of files, where tokens are is found when they are opened. */
	facts.token_bytes = shard_served(facts.type, &d->hint);
	facts.sample_tokens = shard_sample(&facts, &d->hint);
	facts.plain = d->bucket && l->has_data_at && shard_as_served(facts.type, facts.token_bytes);
	if ((s & (s - 1)) == 0 && !dataset_resize(d, s ? 2 * s : 1, r->fault))
		return false;
	if (!(r->key ? shard_list_add_between(
			       &d->list, r->key, l->path, l->etag, strlen(l->etag) + 1, r->fault)
		     : shard_list_add(&d->list, l->path, r->fault)) ||
		!dataset_keep(d, s, format, &facts, r->fault))
		return false;
	d->entry[s].bytes = l->size;
	d->entry[s].digest = l->digest ? strtoull(l->digest, NULL, 16) : 0;
	/* A number that is equal for equal shards. */
	bool tagged = r->key && !d->entry[s].digest;
	uint64_t same = tagged ? order_name_hash(l->etag, strlen(l->etag)) : d->entry[s].digest;

	d->known_by |= tagged ? 2 : same ? 1 : 4;
	d->contents = order_derive(d->contents, same);
	return true;
}

static bool take_line(
	const struct reading *r, const char *text, size_t n, manifest_visit *visit, void *context)
{
	json_t *object = json_object_of(text, n, r->fault);
	const struct shard_format *format;
	struct line l = {0};
	bool fine = object && take_members(r, object, &l) && check_path(r, "path", l.path) &&
		    check_order(r, l.path) && take_names(r, &l, &format) && check_numbers(r, &l) &&
		    take_store(r, &l) && keep(r, &l, format) &&
		    (!visit || visit(context, r->d, object, r->fault));

	json_decref(object);
	return fine;
}

static bool take_lines(struct reading *r, FILE *file, manifest_visit *visit, void *context)
{
	char text[LINE_BYTES];

	while (fgets(text, sizeof(text), file)) {
		size_t n = strlen(text);

		r->line++;
		if (n == 0 || text[n - 1] != '\n')
			return WRONG(r,
				"has no newline within %zu bytes; must be one object and a "
				"newline, at most %d bytes",
				n, LINE_BYTES - 1);
		if (!take_line(r, text, n, visit, context))
			return false;
	}
	r->line = 0;
	if (ferror(file))
		return fault_errno(r->fault, errno, "", "%s", strerror(errno));
	return (r->d->list.count > 0 || WRONG(r, "is empty; must list at least one shard")) &&
	       dataset_resize(r->d, r->d->list.count, r->fault);
}

/* ---- the text, in a file or in a store ---- */

/* An object is read as a whole to *@text, which the caller frees after the file. */
static FILE *open_text(const struct dataset *d, const char *path, char **text, struct fault *fault)
{
	const struct store_bucket *bucket;
	const char *key;
	struct stat st;
	FILE *file = NULL;
	size_t n;

	if (url_text_is(path)) {
		bucket = store_bucket(d->finder.stores, path, &key, fault);
		*text = bucket ? store_load(d->finder.stores, bucket, key, TEXT_MOST, &n, fault)
			       : NULL;
		if (*text && !(file = fmemopen(*text, n, "r")))
			fault_memory(fault);
	} else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a FIFO would be waited for */
		fault_set(fault, FAULT_DATA, "", PHRASE_NOT_FILE);
	} else if (!(file = fopen(path, "re"))) {
		fault_errno(fault, errno, "", "%s", strerror(errno));
	}
	return file;
}

/* Sets the root of the shards, and what finds shards in a store. */
static bool begin(struct reading *r, const char *root)
{
	struct dataset *d = r->d;
	size_t n = strlen(root);

	while (n > 1 && root[n - 1] == '/')
		n--;
	d->list.root = strndup(root, n);
	if (!d->list.root)
		return fault_memory(r->fault);
	if (!url_text_is(root))
		return true;
	d->bucket = store_bucket(d->finder.stores, root, &r->key, r->fault);
	if (!d->bucket)
		return false;
	d->key_bytes = strlen(r->key);
	d->finder.find = dataset_find_object;
	d->finder.context = d;
	d->hint.objects = &d->finder;
	return true;
}

bool manifest_read(struct dataset *d, const char *path, const char *root, manifest_visit *visit,
	void *context, struct fault *fault)
{
	struct reading r = {.d = d, .fault = fault};
	char *text = NULL;
	FILE *file = begin(&r, root) ? open_text(d, path, &text, fault) : NULL;
	bool fine = file && take_lines(&r, file, visit, context);

	if (file)
		fclose(file);
	free(text);
	d->table.shards = d->list.count;
	d->listed = true;
	if (fine)
		return true;
	if (r.line == 0)
		return fault_prefix(fault, "%s: ", path);
	fault->index = r.line < INT_MAX ? (int)r.line : INT_MAX;
	return fault_prefix(fault, "%s:%" PRIu64 ": ", path, r.line);
}
