/*
 * A manifest is read line by line, and a few numbers are kept of each. It is untrusted: a path must
 * stay below the root, and a number must be small enough that computing with it cannot overflow.
 */
#include "daemon/catalog/opening.h"
#include "daemon/shard/json.h"
#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	LINE_BYTES = 8 * PATH_MAX, /* a path may be escaped as \uXXXX */
	FIRST_ROOM = 1024,
};

#define NUMBER_MOST                                                                                \
	(UINT64_C(1) << 60) /* multiplied by the widest token it still fits an offset              \
			     */

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

static bool refuse_memory(const struct reading *r)
{
	refuse(r, "", "out of memory");
	r->fault->code = FAULT_MEMORY;
	return false;
}

/* ---- a line's members ---- */

static const char *const strings[] = {"path", "format", "dtype", "digest", "etag"};

struct line {
	const char *string[5]; /* in the order of strings[]; borrowed */
	struct shard_facts facts;
	const struct shard_format *format;
	uint64_t size, digest;
	bool has_data_at;
	json_t *side; /* borrowed; NULL: none */
};

enum { PATH, FORMAT, DTYPE, DIGEST, ETAG };

/* Takes the strings. *@known: their number. */
static bool take_strings(const struct reading *r, json_t *object, struct line *l, size_t *known)
{
	struct fault fault;

	for (unsigned i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
		bool absent = !json_object_get(object, strings[i]);

		/* The ETag is the identity of an object; without it, the digest is. */
		if (absent && (i == ETAG ? !r->key
					 : i == DIGEST && json_object_get(object, strings[ETAG])))
			continue;
		if (absent && i == ETAG)
			return refuse(r, "etag",
				"etag is missing; must be the ETag of the object: write the "
				"manifest again with `tokctl manifest` and the URL");
		l->string[i] = json_string_in(object, "", strings[i], &fault);
		if (!l->string[i])
			return refuse(r, "", "%s", fault.text);
		++*known;
	}
	return true;
}

/* Takes the known members; rejects others. */
static bool take_members(const struct reading *r, json_t *object, struct line *l)
{
	const struct {
		const char *key;
		uint64_t *to;
		bool required;
	} numbers[] = {
		{"tokens", &l->facts.tokens, true},
		{"size", &l->size, true},
		{"sample_tokens", &l->facts.sample_tokens, false},
		{"row_tokens", &l->facts.row_tokens, false},
		{"frame_bytes", &l->facts.frame_bytes, false},
		{"data_at", &l->facts.data_at, false},
	};
	size_t known = 0;
	struct fault fault;

	if (!take_strings(r, object, l, &known))
		return false;
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!numbers[i].required && !json_object_get(object, numbers[i].key))
			continue;
		if (!json_number_in(object, "", numbers[i].key, NUMBER_MOST, numbers[i].to, &fault))
			return refuse(r, "", "%s", fault.text);
		known++;
	}
	l->has_data_at = json_object_get(object, "data_at");
	l->side = json_object_get(object, "side");
	known += l->side != NULL;
	return known == json_object_size(object) ||
	       refuse(r, "",
		       "has unknown members; must have only path, format, dtype, tokens, size, "
		       "digest, sample_tokens, row_tokens, frame_bytes, etag, data_at and side");
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

static bool take_name(const struct reading *r, const struct line *l)
{
	const struct shard_list *list = &r->m->list;
	const char *name = l->string[PATH], *fault = name_fault(name, strlen(list->root)), *before;
	char shown[80], other[80];

	if (fault)
		return refuse(r, "path",
			"path '%s' %s; must be a file below the dataset's directory",
			json_shown(name, shown, sizeof(shown)), fault);
	before = list->count > 0 ? shard_list_name(list, list->count - 1) : "";
	if (strcmp(before, name) == 0)
		return refuse(r, "path", "path '%s' occurs twice; must be unique",
			json_shown(name, shown, sizeof(shown)));
	if (strcmp(before, name) > 0)
		return refuse(r, "path",
			"path '%s' comes after '%s'; lines must be sorted by path, byte by byte "
			"(LC_ALL=C sort)",
			json_shown(name, shown, sizeof(shown)),
			json_shown(before, other, sizeof(other)));
	return true;
}

/* The first shard's path, for messages. */
static const char *first(const struct reading *r, char shown[80])
{
	return json_shown(shard_list_name(&r->m->list, 0), shown, 80);
}

static bool take_format(const struct reading *r, struct line *l)
{
	const struct manifest *m = r->m;
	char shown[40], other[80], names[SHARD_NAMES_BYTES];

	l->format = shard_format(l->string[FORMAT]);
	if (!l->format)
		return refuse(r, "format", "format '%s' is unknown; must be one of: %s",
			json_shown(l->string[FORMAT], shown, sizeof(shown)),
			shard_format_names(names, sizeof(names)));
	if (r->format && l->format != r->format)
		return refuse(r, "format", "format is %s, but the config sets %s; must be the same",
			l->format->name, r->format->name);
	if (m->format && l->format != m->format)
		return refuse(r, "format",
			"format is %s, but the first shard, %s, is %s; " PHRASE_ONE_FORMAT,
			l->format->name, first(r, other), m->format->name);
	return true;
}

static bool take_type(const struct reading *r, struct line *l)
{
	const struct manifest *m = r->m;
	const char *name = l->string[DTYPE];
	char shown[40], other[80];

	if (!shard_type(name, &l->facts.type))
		return refuse(r, "dtype",
			"dtype '%s' is unknown; must be u8, i8, u16, i16, u32, i32, u64 or i64",
			json_shown(name, shown, sizeof(shown)));
	l->facts.token_bytes = shard_served(l->facts.type, r->hint);
	if (m->format && l->facts.token_bytes != m->token_bytes)
		return refuse(r, "dtype",
			"dtype %s is served in %" PRIu32
			" bytes, but that of the first shard, %s, in %" PRIu32
			"; all shards of a dataset must have one width",
			name, l->facts.token_bytes, first(r, other), m->token_bytes);
	return true;
}

static bool take_digest(const struct reading *r, struct line *l)
{
	const char *text = l->string[DIGEST];
	char shown[40];

	if (!text)
		return true;
	if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return refuse(r, "digest", "digest is '%s'; must be 16 hexadecimal digits",
			json_shown(text, shown, sizeof(shown)));
	l->digest = strtoull(text, NULL, 16);
	return true;
}

static bool check_samples(const struct reading *r, struct line *l)
{
	const struct manifest *m = r->m;
	const struct shard_facts *f = &l->facts;
	uint64_t whole = f->sample_tokens ? f->sample_tokens : f->row_tokens, sample;
	char other[80];

	if (f->sample_tokens && f->row_tokens)
		return refuse(r, "row_tokens",
			"has both row_tokens and sample_tokens; must have only one of them");
	if (whole && f->tokens % whole)
		return refuse(r, "tokens",
			"tokens is %" PRIu64 "; must be a multiple of %s, %" PRIu64, f->tokens,
			f->sample_tokens ? "sample_tokens" : "row_tokens", whole);
	sample = shard_sample(f, r->hint);
	if (l->format->mixes_rows && m->format && sample != m->sample_tokens)
		sample = 0;
	else if (m->format && sample != m->sample_tokens)
		return refuse(r, "sample_tokens",
			"sample_tokens is %" PRIu64
			" (0: none), but that of the first shard, %s, is %" PRIu64
			"; all shards of a dataset must have the same",
			sample, first(r, other), m->sample_tokens);
	l->facts.sample_tokens = sample;
	return true;
}

static bool check_frame(const struct reading *r, const struct line *l)
{
	uint64_t budget = r->hint->budget_bytes;

	if (budget == 0 || l->facts.frame_bytes <= budget)
		return true;
	return refuse(r, "frame_bytes",
		"frame_bytes is %" PRIu64 "; must be at most %" PRIu64 ", a quarter of `memory`",
		l->facts.frame_bytes, budget);
}

/* ---- members of shards in a store ---- */

/* Checks the ETag @what, which goes into a header of each request. */
static bool check_etag(const struct reading *r, const char *what, const char *etag)
{
	char shown[STORE_ETAG_BYTES];
	const char *wrong = NULL;

	json_shown(etag, shown, sizeof(shown));
	if (strncmp(etag, "W/", 2) == 0)
		return refuse(r, "etag",
			"%s is '%s', which is weak: other bytes may have the same; must be a "
			"strong ETag, without W/",
			what, shown);
	if (!*etag)
		wrong = "is empty";
	else if (strchr(etag, '"'))
		wrong = "has a quote";
	else if (strlen(etag) >= STORE_ETAG_BYTES)
		wrong = "is too long";
	for (const char *c = etag; *c && !wrong; c++)
		if (*c <= ' ' || *c > '~')
			wrong = "has a character that is not printable, or a space";
	return !wrong ||
	       refuse(r, "etag",
		       "%s is '%s', which %s; must be 1 to %d printable characters, without quotes",
		       what, shown, wrong, STORE_ETAG_BYTES - 1);
}

/* The tokens of a plain shard end with its object, or before. */
static bool check_data_at(const struct reading *r, const struct line *l)
{
	const struct shard_facts *f = &l->facts;
	uint64_t width = shard_type_bytes(f->type), most;

	if (!l->has_data_at)
		return true;
	if (f->frame_bytes > 0)
		return refuse(r, "data_at",
			"data_at is %" PRIu64 ", but the shard is compressed (frame_bytes %" PRIu64
			"); must be absent",
			f->data_at, f->frame_bytes);
	if (f->tokens > l->size / width)
		return refuse(r, "tokens",
			"tokens is %" PRIu64 " of %" PRIu64 " bytes, and data_at is set; must be "
			"at most %" PRIu64 ", so that they fit into size, %" PRIu64,
			f->tokens, width, l->size / width, l->size);
	most = l->size - f->tokens * width;
	return f->data_at <= most ||
	       refuse(r, "data_at",
		       "data_at is %" PRIu64 "; must be at most %" PRIu64 ": after it, %" PRIu64
		       " tokens of %" PRIu64 " bytes must fit into size, %" PRIu64,
		       f->data_at, most, f->tokens, width, l->size);
}

static bool take_side(const struct reading *r, const char *name, json_t *value)
{
	json_t *size = json_array_get(value, 0), *etag = json_array_get(value, 1);
	const char *fault = store_is_url(name) ? NULL : name_fault(name, strlen(r->m->list.root));
	bool bare = json_array_size(value) == 1 && !r->key;
	char shown[80], what[120];
	struct fault why;

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
	if (bare)
		return true;
	snprintf(what, sizeof(what), "the ETag of side '%s'", shown);
	if (!check_etag(r, what, json_string_value(etag)))
		return false;
	if (!r->key)
		return true;
	const struct side side = {
		name, json_string_value(etag), (uint64_t)json_integer_value(size), r->line};

	return side_list_add(&r->m->sides, r->key, &side, &why) ||
	       refuse(r, "side", "%s", why.text);
}

static bool take_sides(const struct reading *r, const struct line *l)
{
	const char *name;
	json_t *value;

	if (l->side && !json_is_object(l->side))
		return refuse(r, "side",
			"side is %s; must be an object with [SIZE, \"ETAG\"] for each side file",
			json_kind(l->side));
	json_object_foreach(l->side, name, value) if (!take_side(r, name, value)) return false;
	return true;
}

static bool take_store(const struct reading *r, const struct line *l)
{
	const char *etag = l->string[ETAG];

	return (!etag || check_etag(r, "etag", etag)) && check_data_at(r, l) && take_sides(r, l);
}

/* ---- keeping a line ---- */

static bool resize(struct manifest *m, uint64_t n)
{
	uint64_t *tokens = realloc(m->tokens, n * sizeof(*tokens));
	struct entry *entry = realloc(m->entry, n * sizeof(*entry));

	m->tokens = tokens ? tokens : m->tokens;
	m->entry = entry ? entry : m->entry;
	return tokens && entry;
}

static bool add_name(const struct reading *r, const struct line *l, struct fault *fault)
{
	const char *name = l->string[PATH], *etag = l->string[ETAG];

	if (!r->key)
		return shard_list_add(&r->m->list, name, fault);
	return shard_list_add_between(&r->m->list, r->key, name, etag, strlen(etag) + 1, fault);
}

/* As in shard.c: the tokens are served as they are stored. */
static bool is_plain(const struct line *l)
{
	const struct shard_facts *f = &l->facts;

	return l->has_data_at && f->data_at < UINT32_MAX &&
	       (f->type == SHARD_U16 || f->type == SHARD_U32 || f->type == SHARD_I32) &&
	       f->token_bytes == shard_type_bytes(f->type);
}

static bool keep(struct reading *r, const struct line *l)
{
	struct manifest *m = r->m;
	uint64_t s = m->list.count;
	struct fault fault;

	if (s == r->room) {
		r->room = s ? s + s / 2 : FIRST_ROOM;
		if (!resize(m, r->room))
			return refuse_memory(r);
	}
	if (!add_name(r, l, &fault))
		return refuse(r, "", "%s", fault.text);
	m->format = l->format;
	m->token_bytes = l->facts.token_bytes;
	m->sample_tokens = l->facts.sample_tokens;
	m->frame_bytes =
		l->facts.frame_bytes > m->frame_bytes ? l->facts.frame_bytes : m->frame_bytes;
	m->is_signed |= l->facts.type == SHARD_I32;
	m->tokens[s] = l->facts.tokens;
	m->entry[s] = (struct entry){.file.bytes = l->size,
		.digest = l->digest,
		.plain_at = m->bucket && is_plain(l) ? (uint32_t)l->facts.data_at + 1 : 0,
		.type = (uint8_t)l->facts.type};
	return true;
}

static bool take_line(struct reading *r, const char *text, size_t n)
{
	struct fault fault;
	json_t *object = json_object_of(text, n, &fault);
	struct line l = {0};

	if (!object && fault.code == FAULT_MEMORY)
		return refuse_memory(r);
	if (!object)
		return refuse(r, "", "%s", fault.text);
	bool fine = take_members(r, object, &l) && take_name(r, &l) && take_format(r, &l) &&
		    take_type(r, &l) && take_digest(r, &l) && check_samples(r, &l) &&
		    check_frame(r, &l) && take_store(r, &l) && keep(r, &l) &&
		    (!r->visit || r->visit(r->context, r->m, object, r->fault));

	json_decref(object);
	return fine;
}

/* ---- the text, in a file or in a store ---- */

#define TEXT_MOST (UINT64_C(4) << 30) /* bytes of an object */

/* Opens the file, without waiting for the writer of a FIFO. */
static FILE *open_file(const char *path, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
	struct stat st;

	if (!file) {
		fault_errno(fault, errno, "manifest", "%s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return file;
	fault_set(fault, FAULT_DATA, "manifest", PHRASE_NOT_FILE);
	fclose(file);
	return NULL;
}

/* Reads the whole object. */
static FILE *open_object(struct stores *stores, const char *url, char **text, struct fault *fault)
{
	char etag[STORE_ETAG_BYTES];
	const char *key;
	size_t n;
	const struct store_bucket *bucket = NULL;

	if (stores)
		bucket = store_bucket(stores, url, &key, fault);
	else
		fault_set(fault, FAULT_ARGUMENT, "", "no stores are open");
	*text = bucket ? store_load(stores, bucket, key, TEXT_MOST, &n, etag, fault) : NULL;
	FILE *file = *text ? fmemopen(*text, n, "r") : NULL;

	if (*text && !file)
		fault_memory(fault);
	if (!file)
		snprintf(fault->field, sizeof(fault->field), "manifest");
	return file;
}

/* *@text: NULL, or what the caller frees after the file. */
static FILE *open_text(const char *path, struct stores *stores, char **text, struct fault *fault)
{
	*text = NULL;
	return store_is_url(path) ? open_object(stores, path, text, fault) : open_file(path, fault);
}

/* ---- all lines ---- */

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

static char *root_of(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

/* Sets the bucket and the key of a dataset in a store. */
static bool begin(struct reading *r, const char *root)
{
	struct manifest *m = r->m;

	*m = (struct manifest){.list.root = root_of(root)};
	if (!m->list.root)
		return fault_memory(r->fault);
	if (!store_is_url(root))
		return true;
	m->bucket = store_bucket(r->stores, root, &r->key, r->fault);
	m->key_bytes = m->bucket ? strlen(r->key) : 0;
	return m->bucket;
}

static bool end_sides(struct reading *r)
{
	struct side one, other;
	char shown[80];

	if (side_list_end(&r->m->sides, &one, &other))
		return true;
	r->line = one.line > other.line ? one.line : other.line;
	return refuse(r, "side",
		"side '%s' has another size or ETag than on line %" PRIu64 "; must be the same",
		json_shown(one.name, shown, sizeof(shown)),
		one.line < other.line ? one.line : other.line);
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
	FILE *file = begin(&r, root) ? open_text(path, stores, &text, fault) : NULL;
	bool fine;

	if (!file)
		fault_prefix(fault, "%s: ", path);
	fine = file && take_lines(&r, file) && (resize(m, m->list.count) || refuse_memory(&r)) &&
	       end_sides(&r);
	if (file)
		fclose(file);
	free(text);
	if (fine)
		shard_list_trim(&m->list);
	else
		manifest_free(m);
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

static bool differ(struct fault *fault, const char *field, uint64_t listed, uint64_t found)
{
	return fault_set(fault, FAULT_CHANGED, field,
		"%s is %" PRIu64 " in the manifest and %" PRIu64 " in the file", field, listed,
		found);
}

static bool differ_text(
	struct fault *fault, const char *field, const char *listed, const char *found)
{
	return fault_set(fault, FAULT_CHANGED, field, "%s is %s in the manifest and %s in the file",
		field, listed, found);
}

bool manifest_same(const struct manifest_shard *listed, const struct manifest_shard *found,
	struct fault *fault)
{
	if (listed->size != found->size)
		return differ(fault, "size", listed->size, found->size);
	if (listed->format != found->format)
		return differ_text(fault, "format", listed->format->name, found->format->name);
	if (listed->type != found->type)
		return differ_text(fault, "dtype", shard_type_name(listed->type),
			shard_type_name(found->type));
	if (listed->tokens != found->tokens)
		return differ(fault, "tokens", listed->tokens, found->tokens);
	/* Samples are joined if those of another shard are shorter or longer than a window. */
	if (listed->sample_tokens != found->sample_tokens &&
		!(listed->format->mixes_rows && listed->sample_tokens == 0))
		return differ(fault, "sample_tokens", listed->sample_tokens, found->sample_tokens);
	if (listed->frame_bytes < found->frame_bytes)
		return differ(
			fault, "the largest frame_bytes", listed->frame_bytes, found->frame_bytes);
	return true;
}
