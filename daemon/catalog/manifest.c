/*
 * A manifest is read line by line, and a few numbers are kept of each. It is untrusted: a path must
 * stay below the root, and a number must be small enough that computing with it cannot overflow.
 */
#include "daemon/catalog/manifest.h"

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
	const char *path;
	uint64_t line, room;
	const struct shard_format *format;
	const struct shard_hint *hint;
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

static const char *const strings[] = {"path", "format", "dtype", "digest"};

struct line {
	const char *string[4]; /* in the order of strings[]; borrowed */
	struct shard_facts facts;
	const struct shard_format *format;
	uint64_t size, digest;
};

enum { PATH, FORMAT, DTYPE, DIGEST };

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
	};
	size_t known = 0;
	struct fault fault;

	for (unsigned i = 0; i < sizeof(strings) / sizeof(strings[0]); i++, known++) {
		l->string[i] = json_string_in(object, "", strings[i], &fault);
		if (!l->string[i])
			return refuse(r, "", "%s", fault.text);
	}
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!numbers[i].required && !json_object_get(object, numbers[i].key))
			continue;
		if (!json_number_in(object, "", numbers[i].key, NUMBER_MOST, numbers[i].to, &fault))
			return refuse(r, "", "%s", fault.text);
		known++;
	}
	return known == json_object_size(object) ||
	       refuse(r, "",
		       "has unknown members; must have only path, format, dtype, tokens, size, "
		       "digest, sample_tokens, row_tokens and frame_bytes");
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
	if (m->format && sample != m->sample_tokens)
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

/* ---- keeping a line ---- */

static bool resize(struct manifest *m, uint64_t n)
{
	uint64_t **const wide[] = {&m->tokens, &m->sizes, &m->digests};
	uint8_t *types = realloc(m->types, n);

	if (!types)
		return false;
	m->types = types;
	for (unsigned i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
		uint64_t *more = realloc(*wide[i], n * sizeof(*more));

		if (!more)
			return false;
		*wide[i] = more;
	}
	return true;
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
	if (!shard_list_add(&m->list, l->string[PATH], &fault))
		return refuse(r, "", "%s", fault.text);
	m->format = l->format;
	m->token_bytes = l->facts.token_bytes;
	m->sample_tokens = l->facts.sample_tokens;
	m->frame_bytes =
		l->facts.frame_bytes > m->frame_bytes ? l->facts.frame_bytes : m->frame_bytes;
	m->is_signed |= l->facts.type == SHARD_I32;
	m->tokens[s] = l->facts.tokens;
	m->sizes[s] = l->size;
	m->digests[s] = l->digest;
	m->types[s] = (uint8_t)l->facts.type;
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
		    check_frame(r, &l) && keep(r, &l);

	json_decref(object);
	return fine;
}

/* ---- lines ---- */

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

/* Opens the file, without waiting for the writer of a FIFO. NULL: @fault. */
static FILE *open_file(const char *path, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
	struct stat st;

	if (!file) {
		fault_errno(fault, errno, "manifest", "%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return file;
	fault_set(fault, FAULT_DATA, "manifest", "%s: " PHRASE_NOT_FILE, path);
	fclose(file);
	return NULL;
}

static char *root_of(const char *path)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	return strndup(path, n);
}

bool manifest_read(struct manifest *m, const char *path, const char *root,
	const struct shard_format *format, const struct shard_hint *hint, struct fault *fault)
{
	struct reading r = {.m = m, .path = path, .format = format, .hint = hint, .fault = fault};
	FILE *file = open_file(path, fault);
	bool fine;

	*m = (struct manifest){.list.root = root_of(root)};
	if (file && !m->list.root) {
		fault_memory(fault);
		fault_prefix(fault, "%s: ", path);
	}
	fine = file && m->list.root && take_lines(&r, file) &&
	       (resize(m, m->list.count) || refuse_memory(&r));
	if (file)
		fclose(file);
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
	free(m->sizes);
	free(m->digests);
	free(m->types);
	*m = (struct manifest){0};
}

/* ---- comparing ---- */

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
	if (listed->sample_tokens != found->sample_tokens)
		return differ(fault, "sample_tokens", listed->sample_tokens, found->sample_tokens);
	if (listed->frame_bytes < found->frame_bytes)
		return differ(
			fault, "the largest frame_bytes", listed->frame_bytes, found->frame_bytes);
	return true;
}
