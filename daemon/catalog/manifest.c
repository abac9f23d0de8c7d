/*
 * A manifest is read line by line, and a few numbers are kept of each. It is untrusted: a path must
 * stay below the root, and a number must be small enough that computing with it cannot overflow.
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
	struct manifest *m;
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

/* ---- the shards ---- */

bool manifest_resize(struct manifest *m, uint64_t n, struct fault *fault)
{
	uint64_t *tokens = realloc(m->tokens, n * sizeof(*tokens));
	struct entry *entry = realloc(m->entry, n * sizeof(*entry));

	m->tokens = tokens ? tokens : m->tokens;
	m->entry = entry ? entry : m->entry;
	return (tokens && entry) || fault_memory(fault);
}

/* The first shard's path, for messages. */
static const char *first(const struct manifest *m, char shown[80])
{
	return json_shown(shard_list_name(&m->list, 0), shown, 80);
}

bool manifest_keep(struct manifest *m, uint64_t s, const struct shard_format *format,
	const struct shard_facts *f, struct fault *fault)
{
	char shown[80];

	if (!m->format) {
		m->format = format;
		m->token_bytes = f->token_bytes;
		m->sample_tokens = f->sample_tokens;
	}
	if (format != m->format)
		return fault_set(fault, FAULT_DATA, "format",
			"format is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT,
			format->name, first(m, shown), m->format->name);
	if (f->token_bytes != m->token_bytes)
		return fault_set(fault, FAULT_DATA, "dtype",
			"dtype %s is served in %" PRIu32
			" bytes, but that of the first shard, %s, in %" PRIu32
			"; all shards of a dataset must have one width",
			shard_type_name(f->type), f->token_bytes, first(m, shown), m->token_bytes);
	if (f->sample_tokens != m->sample_tokens && !format->mixes_rows)
		return fault_set(fault, FAULT_DATA, "sample_tokens",
			"sample_tokens is %" PRIu64
			" (0: none), but that of the first shard, %s, is %" PRIu64
			"; all shards of a dataset must have the same",
			f->sample_tokens, first(m, shown), m->sample_tokens);
	if (f->sample_tokens != m->sample_tokens)
		m->sample_tokens = 0;
	m->frame_bytes = f->frame_bytes > m->frame_bytes ? f->frame_bytes : m->frame_bytes;
	m->is_signed |= f->type == SHARD_I32;
	m->tokens[s] = f->tokens;
	m->entry[s] = (struct entry){
		.type = (uint8_t)f->type,
		.plain_at = f->plain && f->data_at < UINT32_MAX ? (uint32_t)f->data_at + 1 : 0,
	};
	return true;
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
	const struct shard_list *list = &r->m->list;
	const char *fault = name_fault(l->path, strlen(list->root)),
		   *before = list->count > 0 ? shard_list_name(list, list->count - 1) : "";
	int order = strcmp(before, l->path);
	char name[80], other[80];

	json_shown(l->path, name, sizeof(name));
	if (fault)
		return refuse(r, "path",
			"path '%s' %s; must be a file below the dataset's directory", name, fault);
	if (order == 0)
		return refuse(r, "path", "path '%s' occurs twice; must be unique", name);
	return order < 0 ||
	       refuse(r, "path",
		       "path '%s' comes after '%s'; lines must be sorted by path, byte by byte "
		       "(LC_ALL=C sort)",
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

	if (f->sample_tokens && f->row_tokens)
		return refuse(r, "row_tokens",
			"has both row_tokens and sample_tokens; must have only one of them");
	if (whole && f->tokens % whole)
		return refuse(r, "tokens",
			"tokens is %" PRIu64 "; must be a multiple of %s, %" PRIu64, f->tokens,
			f->sample_tokens ? "sample_tokens" : "row_tokens", whole);
	if (budget > 0 && f->frame_bytes > budget)
		return refuse(r, "frame_bytes",
			"frame_bytes is %" PRIu64 "; must be at most %" PRIu64
			", a quarter of `memory`",
			f->frame_bytes, budget);
	if (l->has_data_at && f->frame_bytes > 0)
		return refuse(r, "data_at",
			"data_at is %" PRIu64 ", but the shard is compressed (frame_bytes %" PRIu64
			"); must be absent",
			f->data_at, f->frame_bytes);
	/* The tokens of a plain shard end with its file, or before. */
	return !l->has_data_at || (bytes <= l->size && f->data_at <= most) ||
	       refuse(r, "data_at",
		       "data_at is %" PRIu64 "; must be at most %" PRIu64 ": after it, %" PRIu64
		       " tokens of %" PRIu64 " bytes must fit into size, %" PRIu64,
		       f->data_at, most, f->tokens, width, l->size);
}

/* ---- members of shards in a store ---- */

/* Checks the ETag of @what, which goes into a header of each request. */
static bool check_etag(const struct reading *r, const char *what, const char *etag)
{
	const char *wrong = NULL;
	char shown[STORE_ETAG_BYTES];
	size_t n = 0;

	while (etag[n] > ' ' && etag[n] <= '~' && etag[n] != '"')
		n++;
	if (strncmp(etag, "W/", 2) == 0)
		wrong = "is weak: other bytes may have the same; must be a strong ETag, without W/";
	else if (n == 0 || n >= STORE_ETAG_BYTES || etag[n])
		wrong = "is empty, too long, or has a character that is not printable, or a space "
			"or quote";
	return !wrong || refuse(r, "etag", "%s is '%s', which %s", what,
				 json_shown(etag, shown, sizeof(shown)), wrong);
}

static bool take_side(const struct reading *r, const char *name, const json_t *value)
{
	const json_t *size = json_array_get(value, 0), *etag = json_array_get(value, 1);
	const char *fault = store_is_url(name) ? NULL : name_fault(name, strlen(r->m->list.root));
	bool bare = json_array_size(value) == 1 && !r->key;
	char shown[80], what[120];
	struct fault cause;

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
	const struct side side = {
		(uint64_t)json_integer_value(size), name, json_string_value(etag)};

	return !r->key || side_add(&r->m->sides, r->key, &side, &cause) || refuse_cause(r, &cause);
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
				&r->m->list, r->key, l->path, l->etag, strlen(l->etag) + 1, fault)
		      : shard_list_add(&r->m->list, l->path, fault);
}

static bool keep(struct reading *r, const struct line *l, const struct shard_format *format)
{
	struct manifest *m = r->m;
	uint64_t s = m->list.count;
	struct shard_facts facts = l->facts;
	struct fault cause;

	/* As in shard.c. Of files, where tokens are is found when they are opened. */
	facts.token_bytes = shard_served(facts.type, r->hint);
	facts.sample_tokens = shard_sample(&facts, r->hint);
	facts.plain =
		m->bucket && l->has_data_at &&
		(facts.type == SHARD_U16 || facts.type == SHARD_U32 || facts.type == SHARD_I32) &&
		facts.token_bytes == shard_type_bytes(facts.type);
	if (s == r->room) {
		r->room = s ? s + s / 2 : FIRST_ROOM;
		if (!manifest_resize(m, r->room, &cause))
			return refuse_cause(r, &cause);
	}
	if (!add_name(r, l, &cause) || !manifest_keep(m, s, format, &facts, &cause))
		return refuse_cause(r, &cause);
	m->entry[s].file.bytes = l->size;
	m->entry[s].digest = l->digest ? strtoull(l->digest, NULL, 16) : 0;
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
		    (!r->visit || r->visit(r->context, r->m, object, r->fault));

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
	const struct store_bucket *bucket = stores ? store_bucket(stores, url, &key, fault) : NULL;

	if (!stores)
		fault_set(fault, FAULT_ARGUMENT, "", "no stores are open");
	*text = bucket ? store_load(stores, bucket, key, TEXT_MOST, &n, fault) : NULL;
	FILE *file = *text ? fmemopen(*text, n, "r") : NULL;

	if (*text && !file)
		fault_memory(fault);
	return file;
}

/* Sets the root, and for a dataset in a store the bucket and the key. */
static bool begin(struct reading *r, const char *root)
{
	struct manifest *m = r->m;
	size_t n = strlen(root);

	while (n > 1 && root[n - 1] == '/')
		n--;
	*m = (struct manifest){.list.root = strndup(root, n)};
	if (!m->list.root)
		return fault_memory(r->fault);
	if (!store_is_url(root))
		return true;
	if (!r->stores)
		return fault_set(r->fault, FAULT_ARGUMENT, "", "no stores are open");
	m->bucket = store_bucket(r->stores, root, &r->key, r->fault);
	m->key_bytes = m->bucket ? strlen(r->key) : 0;
	return m->bucket;
}

bool manifest_read(struct manifest *m, const char *path, const char *root, struct stores *stores,
	const struct shard_format *format, const struct shard_hint *hint, manifest_visit *visit,
	void *context, struct fault *fault)
{
	struct reading r = {.m = m,
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
	bool fine = begin(&r, root);

	if (fine)
		file = store_is_url(path) ? open_object(stores, path, &text, fault)
					  : open_file(path, fault);
	if (!file)
		fault_prefix(fault, "%s: ", path);
	fine = file && take_lines(&r, file) &&
	       (manifest_resize(m, m->list.count, &cause) || refuse_cause(&r, &cause));
	if (file)
		fclose(file);
	free(text);
	if (fine) {
		shard_list_trim(&m->list);
		shard_list_sort(&m->sides);
		if (m->sides.count > 0)
			shard_list_trim(&m->sides);
	} else {
		manifest_free(m);
	}
	return fine;
}

void manifest_free(struct manifest *m)
{
	shard_list_free(&m->list);
	free(m->tokens);
	free(m->entry);
	shard_list_free(&m->sides);
	*m = (struct manifest){0};
}

/* ---- comparing with shards ---- */

bool manifest_same(const struct manifest_shard *listed, const struct manifest_shard *found,
	struct fault *fault)
{
	/* Samples are joined if those of another shard are shorter or longer than a window. */
	bool joined = listed->format->mixes_rows && listed->sample_tokens == 0,
	     larger = found->frame_bytes > listed->frame_bytes;
	const struct {
		const char *field;
		uint64_t listed, found;
		const char *listed_name, *found_name; /* or NULL */
	} facts[] = {
		{"size", listed->size, found->size, NULL, NULL},
		{"format", 0, listed->format != found->format, listed->format->name,
			found->format->name},
		{"dtype", listed->type, found->type, shard_type_name(listed->type),
			shard_type_name(found->type)},
		{"tokens", listed->tokens, found->tokens, NULL, NULL},
		{"sample_tokens", listed->sample_tokens, joined ? 0 : found->sample_tokens, NULL,
			NULL},
		{"the largest frame_bytes", listed->frame_bytes,
			larger ? found->frame_bytes : listed->frame_bytes, NULL, NULL},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		char was[24], is[24];

		snprintf(was, sizeof(was), "%" PRIu64, facts[i].listed);
		snprintf(is, sizeof(is), "%" PRIu64, facts[i].found);
		if (facts[i].listed != facts[i].found)
			return fault_set(fault, FAULT_CHANGED, facts[i].field,
				"%s is %s in the manifest and %s in the file", facts[i].field,
				facts[i].listed_name ? facts[i].listed_name : was,
				facts[i].found_name ? facts[i].found_name : is);
	}
	return true;
}
