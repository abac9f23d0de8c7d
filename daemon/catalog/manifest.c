/*
 * A manifest is the list of a dataset's shards and their facts, as `tokctl manifest` writes it.
 * Each line is a JSON object:
 *
 *   {"path":"a/b.npy","format":"npy","dtype":"u16","tokens":5000,"size":10128,
 *    "digest":"09af09af09af09af"}
 *
 * path is relative to the dataset's directory; lines are sorted by it, byte by byte. digest is a
 * hash of all tokens (client/ctl/offline/shards.h), which only tools that read the whole shard
 * compare. sample_tokens, row_tokens and frame_bytes follow if they are not 0; they are as in
 * struct shard_facts.
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
#include "daemon/shard/json.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	LINE_BYTES = 8 * PATH_MAX, /* a path may be escaped as \uXXXX */
	FIRST_ROOM = 1024,
};

#define NUMBER_MOST (UINT64_C(1) << 60) /* times the widest token it still fits an offset */
#define TEXT_MOST   (UINT64_C(4) << 30) /* bytes of an object */

struct reading {
	struct dataset *d;
	struct stores *stores;
	const char *key; /* of the dataset; NULL: local */
	const char *path;
	uint64_t line, room;
	const struct shard_format *format;
	const struct shard_hint *hint;
	manifest_visit *visit;
	void *context; /* its */
	struct fault *fault;
};

/* A fault of the current line: FAULT_DATA, "PATH:LINE: TEXT", the line as index. Always false. */
__attribute__((format(printf, 3, 4))) static bool refuse(
	const struct reading *r, const char *field, const char *text, ...)
{
	char what[sizeof(r->fault->text)];
	va_list args;

	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	fault_set(r->fault, FAULT_DATA, field, "%s:%" PRIu64 ": %s", r->path, r->line, what);
	r->fault->index = r->line < INT_MAX ? (int)r->line : INT_MAX;
	return false;
}

/* The same for @cause. It stays FAULT_MEMORY. */
static bool refuse_cause(const struct reading *r, const struct fault *cause)
{
	refuse(r, cause->field, "%s", cause->text);
	if (cause->code == FAULT_MEMORY)
		r->fault->code = FAULT_MEMORY;
	return false;
}

static bool refuse_memory(const struct reading *r)
{
	struct fault cause;

	fault_memory(&cause);
	return refuse_cause(r, &cause);
}

/* ---- a line's members ---- */

struct line {
	const char *path, *format, *dtype, *digest, *etag; /* borrowed; NULL: absent */
	struct shard_facts facts;
	uint64_t size;
	bool has_data_at;
	json_t *side; /* borrowed; NULL: absent */
};

static const struct {
	const char *key;
	size_t at; /* of a string or number in struct line */
	bool is_text, required;
} members[] = {
	{"path", offsetof(struct line, path), true, true},
	{"format", offsetof(struct line, format), true, true},
	{"dtype", offsetof(struct line, dtype), true, true},
	{"tokens", offsetof(struct line, facts.tokens), false, true},
	{"size", offsetof(struct line, size), false, true},
	{"digest", offsetof(struct line, digest), true, false},
	{"sample_tokens", offsetof(struct line, facts.sample_tokens), false, false},
	{"row_tokens", offsetof(struct line, facts.row_tokens), false, false},
	{"frame_bytes", offsetof(struct line, facts.frame_bytes), false, false},
	{"etag", offsetof(struct line, etag), true, false},
	{"data_at", offsetof(struct line, facts.data_at), false, false},
};

/* Takes the known members; rejects others. */
static bool take_members(const struct reading *r, const json_t *object, struct line *l)
{
	size_t known = 0;
	struct fault cause;

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		const char *key = members[i].key;
		void *to = (char *)l + members[i].at;

		if (!members[i].required && !json_object_get(object, key))
			continue;
		known++;
		if (members[i].is_text
				? !(*(const char **)to = json_string_in(object, "", key, &cause))
				: !json_number_in(object, "", key, NUMBER_MOST, to, &cause))
			return refuse(r, "", "%s", cause.text);
	}
	l->has_data_at = json_object_get(object, "data_at");
	l->side = json_object_get(object, "side");
	if (known + (l->side != NULL) != json_object_size(object))
		return refuse(r, "",
			"has unknown members; must have only path, format, dtype, tokens, size, "
			"digest, sample_tokens, row_tokens, frame_bytes, etag, data_at and side");
	/* The ETag is the identity of an object; without it, the digest is. */
	if (r->key && !l->etag)
		return refuse(r, "etag",
			"etag is missing; must be the ETag of the object: write the manifest again "
			"with `tokctl manifest` and the URL");
	return l->etag || l->digest || refuse(r, "digest", "digest is missing; must be a string");
}

/* The problem with a path, for the message; NULL: none. */
static const char *name_fault(const char *name, size_t root_bytes)
{
	if (*name == '/')
		return "is absolute";
	if (root_bytes + 1 + strlen(name) >= PATH_MAX)
		return "is too long";
	for (const char *part = name;; part++) {
		size_t n = strcspn(part, "/");

		if (n == 0 || strncmp(part, "..", n) == 0)
			return "has a part that is empty, . or ..";
		part += n;
		if (!*part)
			return NULL;
	}
}

static bool check_name(const struct reading *r, const struct line *l)
{
	const struct shard_list *list = &r->d->list;
	const char *fault = name_fault(l->path, strlen(list->root)),
		   *before = list->count > 0 ? shard_list_name(list, list->count - 1) : "";
	int order = strcmp(before, l->path);
	char name[80], other[80];

	json_shown(l->path, name, sizeof(name));
	if (fault)
		return refuse(r, "path",
			"path '%s' %s; must be a file below the dataset's directory", name, fault);
	return order < 0 ||
	       refuse(r, "path",
		       "path '%s' comes after '%s'; paths must be unique, and lines sorted by "
		       "them, byte by byte (LC_ALL=C sort)",
		       name, json_shown(before, other, sizeof(other)));
}

/* Looks up the format and the type. */
static bool take_names(const struct reading *r, struct line *l, const struct shard_format **format)
{
	char shown[40], names[SHARD_NAMES_BYTES];

	*format = shard_format(l->format);
	if (!*format)
		return refuse(r, "format", "format '%s' is unknown; must be one of: %s",
			json_shown(l->format, shown, sizeof(shown)),
			shard_format_names(names, sizeof(names)));
	if (r->format && *format != r->format)
		return refuse(r, "format", "format is %s, but the config sets %s; must be the same",
			l->format, r->format->name);
	if (!shard_type(l->dtype, &l->facts.type))
		return refuse(r, "dtype",
			"dtype '%s' is unknown; must be u8, i8, u16, i16, u32, i32, u64 or i64",
			json_shown(l->dtype, shown, sizeof(shown)));
	if (l->digest && (strlen(l->digest) != 16 || strspn(l->digest, "0123456789abcdef") != 16))
		return refuse(r, "digest", "digest is '%s'; must be 16 hexadecimal digits",
			json_shown(l->digest, shown, sizeof(shown)));
	return true;
}

static bool check_numbers(const struct reading *r, const struct line *l)
{
	const struct shard_facts *f = &l->facts;
	uint64_t whole = f->sample_tokens ? f->sample_tokens : f->row_tokens,
		 budget = r->hint->budget_bytes, width = shard_type_bytes(f->type),
		 bytes = f->tokens * width, most = l->size > bytes ? l->size - bytes : 0;

	if ((f->sample_tokens && f->row_tokens) || (whole && f->tokens % whole))
		return refuse(r, "tokens",
			"tokens is %" PRIu64 "; must be a multiple of sample_tokens, %" PRIu64
			", or of row_tokens, %" PRIu64 "; one of them must be absent",
			f->tokens, f->sample_tokens, f->row_tokens);
	if (budget > 0 && f->frame_bytes > budget)
		return refuse(r, "frame_bytes",
			"frame_bytes is %" PRIu64 "; must be at most %" PRIu64
			", a quarter of `memory`",
			f->frame_bytes, budget);
	/* The tokens of a plain shard end with its file, or before. */
	return !l->has_data_at || (f->frame_bytes == 0 && bytes <= l->size && f->data_at <= most) ||
	       refuse(r, "data_at",
		       "data_at is %" PRIu64 "; must be absent of a compressed shard, otherwise at "
		       "most %" PRIu64 ": after it, %" PRIu64 " tokens of %" PRIu64
		       " bytes must fit into size, %" PRIu64,
		       f->data_at, most, f->tokens, width, l->size);
}

/* ---- members of shards in a store ---- */

/* Checks the ETag of @what, which goes into a header of each request. */
static bool check_etag(const struct reading *r, const char *what, const char *etag)
{
	char shown[STORE_ETAG_BYTES];
	size_t n = 0;

	while (etag[n] > ' ' && etag[n] <= '~' && etag[n] != '"')
		n++;
	return (n > 0 && n < STORE_ETAG_BYTES && !etag[n] && strncmp(etag, "W/", 2) != 0) ||
	       refuse(r, "etag",
		       "%s is '%s'; must be a strong ETag (without W/) of up to %d printable "
		       "characters, without spaces and quotes",
		       what, json_shown(etag, shown, sizeof(shown)), STORE_ETAG_BYTES - 1);
}

/* If lines list a side file differently, the store refuses to read it, as it compares both. */
static bool take_side(const struct reading *r, const char *name, json_t *value)
{
	const json_t *size = json_array_get(value, 0), *etag = json_array_get(value, 1);
	const char *fault = store_is_url(name) ? NULL : name_fault(name, strlen(r->d->list.root));
	bool bare = json_array_size(value) == 1 && !r->key;
	char shown[80], what[120], key[LINE_BYTES];

	json_shown(name, shown, sizeof(shown));
	if (fault)
		return refuse(r, "side",
			"side '%s' %s; must be a file below the dataset's directory, or a URL",
			shown, fault);
	if ((json_array_size(value) != 2 && !bare) || !json_is_integer(size) ||
		json_integer_value(size) < 0 || (!bare && !json_is_string(etag)))
		return refuse(r, "side",
			"side '%s' is %s; must be [SIZE, \"ETAG\"], the bytes and the ETag of the "
			"side file",
			shown, json_is_array(value) ? "another array" : json_kind(value));
	snprintf(what, sizeof(what), "the ETag of side '%s'", shown);
	if (!bare && !check_etag(r, what, json_string_value(etag)))
		return false;
	if (!r->key)
		return true;
	snprintf(key, sizeof(key), "%s%s", store_is_url(name) ? "" : r->key, name);
	if (!r->d->sides)
		r->d->sides = json_object();
	return json_object_set_nocheck(r->d->sides, key, value) == 0 || refuse_memory(r);
}

static bool take_store(const struct reading *r, const struct line *l)
{
	const char *name;
	json_t *value;

	if (l->etag && !check_etag(r, "etag", l->etag))
		return false;
	if (l->side && !json_is_object(l->side))
		return refuse(r, "side",
			"side is %s; must be an object with [SIZE, \"ETAG\"] for each side file",
			json_kind(l->side));
	json_object_foreach(l->side, name, value) if (!take_side(r, name, value)) return false;
	return true;
}

/* ---- keeping a line ---- */

static bool add_name(const struct reading *r, const struct line *l, struct fault *fault)
{
	return r->key ? shard_list_add_between(
				&r->d->list, r->key, l->path, l->etag, strlen(l->etag) + 1, fault)
		      : shard_list_add(&r->d->list, l->path, fault);
}

static bool keep(struct reading *r, const struct line *l, const struct shard_format *format)
{
	struct dataset *d = r->d;
	uint64_t s = d->list.count;
	struct shard_facts facts = l->facts;
	struct fault cause;

	/* As in shard.c. Of files, where tokens are is found when they are opened. */
	facts.token_bytes = shard_served(facts.type, r->hint);
	facts.sample_tokens = shard_sample(&facts, r->hint);
	facts.plain =
		d->bucket && l->has_data_at &&
		(facts.type == SHARD_U16 || facts.type == SHARD_U32 || facts.type == SHARD_I32) &&
		facts.token_bytes == shard_type_bytes(facts.type);
	if (s == r->room) {
		r->room = s ? s + s / 2 : FIRST_ROOM;
		if (!dataset_resize(d, r->room, &cause))
			return refuse_cause(r, &cause);
	}
	if (!add_name(r, l, &cause) || !dataset_keep(d, s, format, &facts, &cause))
		return refuse_cause(r, &cause);
	d->entry[s].file.bytes = l->size;
	d->entry[s].digest = l->digest ? strtoull(l->digest, NULL, 16) : 0;
	return true;
}

static bool take_line(struct reading *r, const char *text, size_t n)
{
	struct fault cause;
	json_t *object = json_object_of(text, n, &cause);
	const struct shard_format *format;
	struct line l = {0};

	if (!object)
		return refuse_cause(r, &cause);
	bool fine = take_members(r, object, &l) && check_name(r, &l) &&
		    take_names(r, &l, &format) && check_numbers(r, &l) && take_store(r, &l) &&
		    keep(r, &l, format) &&
		    (!r->visit || r->visit(r->context, r->d, object, r->fault));

	json_decref(object);
	return fine;
}

static bool take_lines(struct reading *r, FILE *file)
{
	char text[LINE_BYTES];

	while (fgets(text, sizeof(text), file)) {
		size_t n = strlen(text);

		r->line++;
		if (n == 0 || text[n - 1] != '\n')
			return refuse(r, "",
				"has no newline within %zu bytes; must be one object and a "
				"newline, at most %d bytes",
				n, LINE_BYTES - 1);
		if (!take_line(r, text, n))
			return false;
	}
	if (ferror(file))
		return fault_errno(r->fault, errno, "manifest", "%s: %s", r->path, strerror(errno));
	return r->line > 0 || fault_set(r->fault, FAULT_DATA, "manifest",
				      "%s: is empty; must list at least one shard", r->path);
}

/* ---- the text, in a file or in a store ---- */

static FILE *open_file(const char *path, struct fault *fault)
{
	struct stat st;
	FILE *file = NULL;

	/* fopen() would wait for the writer of a FIFO. */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		fault_set(fault, FAULT_DATA, "manifest", PHRASE_NOT_FILE);
	else if (!(file = fopen(path, "re")))
		fault_errno(fault, errno, "manifest", "%s", strerror(errno));
	return file;
}

/* Reads the whole object to *@text, which the caller frees after the file. */
static FILE *open_object(struct stores *stores, const char *url, char **text, struct fault *fault)
{
	const char *key;
	size_t n;
	const struct store_bucket *bucket = store_bucket(stores, url, &key, fault);

	*text = bucket ? store_load(stores, bucket, key, TEXT_MOST, &n, fault) : NULL;
	FILE *file = *text ? fmemopen(*text, n, "r") : NULL;

	if (*text && !file)
		fault_memory(fault);
	return file;
}

/* Sets the root, and for a dataset in a store the bucket and the key. */
static bool begin(struct reading *r, const char *root)
{
	struct dataset *d = r->d;
	size_t n = strlen(root);

	while (n > 1 && root[n - 1] == '/')
		n--;
	d->list.root = strndup(root, n);
	if (!d->list.root)
		return fault_memory(r->fault);
	if (!store_is_url(root))
		return true;
	d->bucket = store_bucket(r->stores, root, &r->key, r->fault);
	d->key_bytes = d->bucket ? strlen(r->key) : 0;
	return d->bucket;
}

bool manifest_read(struct dataset *d, const char *path, const char *root, struct stores *stores,
	const struct shard_format *format, const struct shard_hint *hint, manifest_visit *visit,
	void *context, struct fault *fault)
{
	struct reading r = {.d = d,
		.stores = stores,
		.path = path,
		.format = format,
		.hint = hint,
		.visit = visit,
		.context = context,
		.fault = fault};
	char *text = NULL;
	FILE *file = NULL;
	struct fault cause;
	bool urls = store_is_url(path) || store_is_url(root),
	     fine = stores || !urls ? begin(&r, root)
				    : fault_set(fault, FAULT_ARGUMENT, "", "no stores are open");

	if (fine)
		file = store_is_url(path) ? open_object(stores, path, &text, fault)
					  : open_file(path, fault);
	if (!file)
		fault_prefix(fault, "%s: ", path);
	fine = file && take_lines(&r, file) &&
	       (dataset_resize(d, d->list.count, &cause) || refuse_cause(&r, &cause));
	if (file)
		fclose(file);
	free(text);
	if (!fine) {
		dataset_close(d);
		return false;
	}
	d->table.shards = d->list.count;
	d->listed = true;
	return true;
}
