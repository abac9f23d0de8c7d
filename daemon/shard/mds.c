/*
 * Mosaic's MDS: u32 n, u32 offsets[n + 1], a JSON config, then n samples. A sample is a u32 length
 * for each column of variable size, then the values of all columns. A value is raw, or begins with
 * its type and shape.
 *
 * Samples are rows, as in npy.c: if all of a dataset have the length of a window, each is one;
 * otherwise they are documents, which are joined. An empty sample is a document without tokens.
 *
 * Where the lengths tell how many tokens a sample has, as with what llm-foundry writes, only the
 * first sample of a large shard is looked at.
 *
 * index.json, in a shard's directory or its parent, lists the shards. The index and the files must
 * agree, so that a lost, a stray or a rewritten file does not silently change a run.
 */
#include "daemon/shard/format.h"
#include "daemon/shard/json.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	COLUMNS_MOST = 256,
	DIMENSIONS_MOST = 63,
	SHAPE_MOST = 2 + 8 * DIMENSIONS_MOST, /* bytes of a type and a shape */
	CONFIG_MOST = 1 << 20,
	INDEX_MOST = 64 << 20, /* bytes of an index.json: a hundred thousand shards */
	SMALL = 1 << 20,       /* bytes; all samples of smaller shards are looked at */
	SOME = 1024,	       /* bytes of a sample, usually enough for its lengths and shape */
	SHOWN = 48,
};

/* Where the tokens are in a sample. */
struct layout {
	unsigned columns;
	unsigned column;	     /* index of the one with the tokens */
	uint32_t size[COLUMNS_MOST]; /* of each column; 0: variable, stored in each sample */
	unsigned variable;	     /* number of variable columns */
	uint64_t fixed;		     /* total bytes of the others */
	char name[SHOWN];	     /* of the column, printable */

	bool has_type; /* otherwise the value begins with its type */
	bool raw;      /* otherwise the shape comes next */
	enum shard_type type;
};

/* A shard that is being read. */
struct mds {
	const struct bytes *b;
	struct fault *fault;
	uint32_t samples;
	uint8_t *front; /* the first bytes: up to the first sample, and some of that */
	uint64_t front_bytes;
	struct layout layout;
};

struct sample {
	uint32_t number;
	uint64_t begin, end;   /* in the file */
	uint64_t value, bytes; /* of our column */
	uint64_t at, tokens;
	enum shard_type type;
};

#define refuse(m, ...) fault_data((m)->fault, __VA_ARGS__)

/* ---- index.json ---- */

struct index {
	struct index *next;
	json_t *shards; /* by name of the raw file: number, samples, bytes; NULL: no index.json */
	char path[PATH_MAX];
};

struct mds_indexes {
	pthread_mutex_t lock;
	struct index *first;
	size_t root_bytes; /* without slashes at the end */
	char root[];
};

struct mds_indexes *mds_indexes_new(const char *root)
{
	size_t n = strlen(root);
	struct mds_indexes *indexes = calloc(1, sizeof(*indexes) + n + 1);

	if (!indexes)
		return NULL;
	pthread_mutex_init(&indexes->lock, NULL);
	memcpy(indexes->root, root, n);
	while (n > 0 && root[n - 1] == '/')
		n--;
	indexes->root_bytes = n;
	return indexes;
}

static void index_free(struct index *x)
{
	json_decref(x->shards);
	free(x);
}

void mds_indexes_free(struct mds_indexes *indexes)
{
	if (!indexes)
		return;
	for (struct index *x; (x = indexes->first);) {
		indexes->first = x->next;
		index_free(x);
	}
	pthread_mutex_destroy(&indexes->lock);
	free(indexes);
}

/* Whether the raw file @name exists, also compressed. */
static bool is_there(const struct index *x, const struct objects *objects, const char *name)
{
	static const char *const endings[] = {"", ".zstd", ".zst"};
	int directory = (int)(strlen(x->path) - strlen("index.json"));
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	for (unsigned i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (snprintf(path, sizeof(path), "%.*s%s%s", directory, x->path, name, endings[i]) <
				(int)sizeof(path) &&
			(objects ? objects->find(objects->context, path, &object)
				 : stat(path, &st) == 0 && S_ISREG(st.st_mode)))
			return true;
	return false;
}

static bool take_shard(struct index *x, size_t number, json_t *shard, const struct objects *objects,
	struct fault *fault)
{
	json_int_t samples, bytes;
	json_error_t error;
	const char *name;
	char shown[80];

	if (json_unpack_ex(shard, &error, 0, "{s:I, s:{s:s, s:I}}", "samples", &samples, "raw_data",
		    "basename", &name, "bytes", &bytes) != 0)
		return fault_data(fault, "shards[%zu]: %s", number,
			json_shown(error.text, shown, sizeof(shown)));
	if (!is_there(x, objects, name))
		return fault_data(fault,
			"shards[%zu] is '%s', but there is no such file; add it, or rewrite the "
			"index",
			number, json_shown(name, shown, sizeof(shown)));
	return json_object_set_new(x->shards, name,
		       json_pack("[III]", (json_int_t)number, samples, bytes)) == 0 ||
	       fault_memory(fault);
}

static bool load_index(struct index *x, const struct bytes *file, struct fault *fault)
{
	char *text = file->size <= INDEX_MOST ? malloc(file->size + 1) : NULL;
	json_t *whole = NULL, *shards;

	x->shards = json_object();
	if (file->size > INDEX_MOST)
		bytes_check(fault, file->size, 0, INDEX_MOST, "its size");
	else if (!text || !x->shards)
		fault_memory(fault);
	else if (bytes_read(file, 0, text, file->size, fault))
		whole = json_object_of(text, file->size, fault);
	shards = json_object_get(whole, "shards");
	bool fine = whole &&
		    (json_is_array(shards) ||
			    fault_data(fault, "shards is %s; must be an array", json_kind(shards)));

	for (size_t i = 0; fine && i < json_array_size(shards); i++)
		fine = take_shard(x, i, json_array_get(shards, i), file->objects, fault);
	json_decref(whole);
	free(text);
	return (fine && bytes_settled(file, fault)) || fault_prefix(fault, "index.json: ");
}

/*
 * The index in the directory, whose path has @n bytes, read now or for another shard. A failure is
 * not kept. NULL: @fault.
 */
static const struct index *index_in(struct mds_indexes *indexes, const struct bytes *shard,
	const char *directory, size_t n, struct fault *fault)
{
	struct index *x, *new = calloc(1, sizeof(*new));
	struct bytes *file = NULL;

	if (!new) {
		fault_memory(fault);
		return NULL;
	}
	snprintf(new->path, sizeof(new->path), "%.*sindex.json", (int)n, directory);
	pthread_mutex_lock(&indexes->lock);
	for (x = indexes->first; x && strcmp(x->path, new->path) != 0;)
		x = x->next;
	if (!x && bytes_open_side(shard, new->path, &file, fault)) {
		if (!file || load_index(new, file, fault)) {
			new->next = indexes->first;
			indexes->first = x = new;
		}
		bytes_close(file);
	}
	pthread_mutex_unlock(&indexes->lock);
	if (x != new)
		index_free(new);
	return x;
}

/*
 * Writes the absolute path of the raw shard to @to[PATH_MAX]: the names of its directory and of the
 * parent are needed. False: @fault.
 */
static bool raw_path(const struct bytes *b, char *to, struct fault *fault)
{
	const char *name = bytes_name(b->path);
	const char *end = bytes_ending(b->path, ".mds");
	bool dots = strstr(b->path, "/./") || strstr(b->path, "/../");
	char directory[PATH_MAX] = ".";

	if (name > b->path)
		snprintf(directory, sizeof(directory), "%.*s", (int)(name - 1 - b->path), b->path);
	if (b->objects || (b->path[0] == '/' && !dots))
		memcpy(to, directory, sizeof(directory));
	else if (!realpath(directory, to))
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	size_t n = strlen(to);

	return snprintf(to + n, PATH_MAX - n, "/%.*s", end ? (int)(end - name) + 4 : PATH_MAX,
		       name) < (int)(PATH_MAX - n) ||
	       fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

/* The length of the directory in the first @n bytes of @path, with its slash; 0: there is none. */
static size_t directory_of(const char *path, size_t n)
{
	for (n -= n > 0; n > 0 && path[n - 1] != '/';)
		n--;
	return n;
}

/*
 * Checks the shard by the index in a directory, the first @n bytes of raw_path(). *@absent: there
 * is none.
 */
static bool check_index(
	const struct mds *m, struct mds_indexes *indexes, const char *path, size_t n, bool *absent)
{
	const struct bytes *b = m->b;
	const struct index *x = index_in(indexes, b, path, n, m->fault);
	json_int_t number, samples, bytes;

	*absent = x && !x->shards;
	if (!x || !x->shards)
		return x;
	if (json_unpack(json_object_get(x->shards, path + n), "[III]", &number, &samples, &bytes) !=
		0)
		return refuse(m,
			"is not among the %zu shards of %.200s; move it away, or rewrite the index",
			json_object_size(x->shards), x->path);
	if (samples != m->samples)
		return refuse(m,
			"number of samples is %" PRIu32 "; index.json: shards[%" JSON_INTEGER_FORMAT
			"].samples is %" JSON_INTEGER_FORMAT,
			m->samples, number, samples);
	return (uint64_t)bytes == b->size ||
	       refuse(m,
		       "%s %" PRIu64 " bytes; index.json: shards[%" JSON_INTEGER_FORMAT
		       "].raw_data.bytes is %" JSON_INTEGER_FORMAT,
		       b->plain ? "its size is" : "it decodes to", b->size, number, bytes);
}

/*
 * Checks that the indexes list the shard, with its size and number of samples, and that all shards
 * that they list exist. The index of the parent, a merged one, which calls the shard
 * DIRECTORY/NAME, is checked if it belongs to the dataset or is the only one.
 */
static bool check_listed(const struct mds *m, const struct shard_hint *hint)
{
	struct mds_indexes *indexes = hint->indexes ? hint->indexes : mds_indexes_new("");
	char path[PATH_MAX];
	bool fine = indexes ? raw_path(m->b, path, m->fault) : fault_memory(m->fault), absent;

	if (fine) {
		size_t n = directory_of(path, strlen(path)), up = directory_of(path, n),
		       root = indexes->root_bytes;

		fine = check_index(m, indexes, path, n, &absent);
		if (fine && up > 0 &&
			(absent || (root > 0 && up > root && path[root] == '/' &&
					   memcmp(path, indexes->root, root) == 0)))
			fine = check_index(m, indexes, path, up, &absent);
	}
	if (!hint->indexes)
		mds_indexes_free(indexes);
	return fine;
}

/* ---- columns ---- */

/* "uint16" is u16, "int64" is i64. */
static bool type_called(const char *text, int n, enum shard_type *type)
{
	int at = *text == 'u';
	char name[8];

	if (n <= at + 3 || strncmp(text + at, "int", 3) != 0)
		return false;
	snprintf(name, sizeof(name), "%c%.*s", at ? 'u' : 'i', n - at - 3, text + at + 3);
	return shard_type(name, type);
}

/*
 * Whether a column of this encoding holds tokens: `bytes`, `ndarray`, `ndarray:TYPE`, or
 * `ndarray:TYPE:SHAPE`, whose values are raw, too. Fills the members of @l that depend on it.
 */
static bool encoding(const char *text, const struct shard_hint *hint, struct layout *l)
{
	l->has_type = l->raw = strcmp(text, "bytes") == 0;
	l->type = hint->has_type ? hint->type : SHARD_I64;
	if (l->raw || strcmp(text, "ndarray") == 0)
		return true;
	if (strncmp(text, "ndarray:", 8) != 0)
		return false;
	l->has_type = true;
	l->raw = strchr(text + 8, ':');
	return type_called(text + 8, (int)strcspn(text + 8, ":"), &l->type);
}

/* The config's three arrays, of l->columns columns each. */
struct columns {
	const json_t *names, *encodings, *sizes;
};

static const char *text_of(const json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

/* Checks the arrays: equal lengths, the right types, and names that ascend, as they are written. */
static bool read_columns(struct mds *m, const struct columns *c)
{
	struct layout *l = &m->layout;
	size_t n = json_array_size(c->names);

	if (n == 0 || n > COLUMNS_MOST || json_array_size(c->encodings) != n ||
		json_array_size(c->sizes) != n)
		return refuse(m,
			"column_names has %zu entries, column_encodings %zu, column_sizes %zu; "
			"must be arrays of the same length, 1 to %d",
			n, json_array_size(c->encodings), json_array_size(c->sizes), COLUMNS_MOST);
	for (; l->columns < n; l->columns++) {
		unsigned i = l->columns;
		const json_t *size = json_array_get(c->sizes, i);

		if (!text_of(c->names, i) || !text_of(c->encodings, i) ||
			(!json_is_null(size) && !json_is_integer(size)) ||
			json_integer_value(size) < 0 || json_integer_value(size) > UINT32_MAX ||
			(i > 0 && strcmp(text_of(c->names, i), text_of(c->names, i - 1)) <= 0))
			return refuse(m,
				"column %u: must have a name after the previous one, an encoding, "
				"and as size null or 0 to %u",
				i, UINT32_MAX);
		l->size[i] = (uint32_t)json_integer_value(size);
		l->variable += l->size[i] == 0;
		l->fixed += l->size[i];
	}
	return true;
}

/* Chooses the config's column; otherwise one with llm-foundry's names; otherwise the only one. */
static bool choose(struct mds *m, const struct columns *c, const char *name)
{
	const char *const wanted[] = {name ? name : "tokens", name ? name : "input_ids"};
	unsigned columns = m->layout.columns;
	char all[160] = "", shown[SHOWN], encoded[SHOWN];
	size_t n = 0;

	for (unsigned i = 0; i < 2 * columns; i++) {
		m->layout.column = i % columns;
		if (strcmp(text_of(c->names, i % columns), wanted[i / columns]) == 0)
			return true;
	}
	m->layout.column = 0;
	if (!name && columns == 1)
		return true;
	for (unsigned i = 0; i < columns && n < sizeof(all); i++)
		n += (size_t)snprintf(all + n, sizeof(all) - n, "%s%s: %s", i ? ", " : "",
			json_shown(text_of(c->names, i), shown, sizeof(shown)),
			json_shown(text_of(c->encodings, i), encoded, sizeof(encoded)));
	return refuse(m, "has no column %s; set `column` to the one with the tokens, of: %s",
		name ? json_shown(name, shown, sizeof(shown)) : "tokens or input_ids", all);
}

static bool lay_out(struct mds *m, const json_t *config, const struct shard_hint *hint)
{
	const struct columns c = {json_object_get(config, "column_names"),
		json_object_get(config, "column_encodings"),
		json_object_get(config, "column_sizes")};
	struct layout *l = &m->layout;
	char shown[SHOWN];

	if (!read_columns(m, &c) || !choose(m, &c, hint->column))
		return false;
	const char *text = text_of(c.encodings, l->column);

	json_shown(text_of(c.names, l->column), l->name, sizeof(l->name));
	return encoding(text, hint, l) ||
	       refuse(m,
		       "column `%s` is encoded as `%s`; must be bytes, or ndarray, ndarray:DTYPE "
		       "or ndarray:DTYPE:SHAPE with an integer type",
		       l->name, json_shown(text, shown, sizeof(shown)));
}

/* ---- the front ---- */

static uint32_t offset(const struct mds *m, uint64_t i)
{
	return bytes_u32(m->front + 4 + 4 * i);
}

/* Offsets ascend, up to the end of the file. */
static bool check_offsets(struct mds *m)
{
	uint32_t last = offset(m, 0), size = (uint32_t)m->b->size;

	if (offset(m, m->samples) != m->b->size)
		return refuse(m,
			"the last sample ends at byte %" PRIu32 "; the file has %" PRIu64 " bytes",
			offset(m, m->samples), m->b->size);
	for (uint64_t i = 1; i <= m->samples; last = offset(m, i++))
		if (offset(m, i) < last || offset(m, i) > size)
			return refuse(m,
				"offset %" PRIu64 " is %" PRIu32 "; must be %" PRIu32 " to %" PRIu32
				": offsets ascend",
				i, offset(m, i), last, size);
	return true;
}

/* Reads the offsets, the config and some of the first sample. */
static bool read_front(struct mds *m)
{
	uint64_t size = m->b->size;
	uint8_t head[8] = {0};

	if (!bytes_begin(m->b, head, size < sizeof(head) ? size : sizeof(head), m->fault))
		return false;
	m->samples = bytes_u32(head);
	uint64_t first = bytes_u32(head + 4), table = 4 + 4 * ((uint64_t)m->samples + 1);

	if (m->samples == 0 && size >= sizeof(head))
		return refuse(m, "number of samples is 0: it has no tokens; remove it");
	if (table > size)
		return refuse(m,
			"number of samples is %" PRIu32 ", whose offsets end at byte %" PRIu64
			"; the file has %" PRIu64 " bytes",
			m->samples, table, size);
	if (first < table || first > size || first - table > CONFIG_MOST)
		return refuse(m,
			"offset 0 is %" PRIu64 "; must be %" PRIu64
			" (the end of the offsets) to %" PRIu64 ", with at most %d bytes of config",
			first, table, size, CONFIG_MOST);
	m->front_bytes = first + SOME < size ? first + SOME : size;
	m->front = malloc(m->front_bytes);
	if (!m->front)
		return fault_memory(m->fault);
	if (!bytes_begin(m->b, m->front, m->front_bytes, m->fault))
		return false;
	return (memcmp(m->front, head, sizeof(head)) == 0 || refuse(m, PHRASE_CHANGED_OPENING)) &&
	       check_offsets(m);
}

static bool read_config(struct mds *m, const struct shard_hint *hint)
{
	uint64_t from = 4 + 4 * ((uint64_t)m->samples + 1);
	json_t *config =
		json_object_of((const char *)m->front + from, offset(m, 0) - from, m->fault);
	uint64_t version;
	bool fine = config &&
		    json_number_in(config, "", "version", INT32_MAX, &version, m->fault) &&
		    bytes_check(m->fault, version, 2, 2, "version") && lay_out(m, config, hint);

	json_decref(config);
	return fine || fault_prefix(m->fault, "config: ");
}

/* ---- samples ---- */

/* Like bytes_read(), which the front spares. */
static bool get(struct mds *m, uint64_t at, void *to, size_t n)
{
	if (at + n > m->front_bytes)
		return bytes_read(m->b, at, to, n, m->fault);
	memcpy(to, m->front + at, n);
	return true;
}

/*
 * Finds our column in a sample, whose lengths must add up to its size. @sized: the length is not
 * read if it is the only one.
 */
static bool find_column(struct mds *m, struct sample *s, bool sized)
{
	const struct layout *l = &m->layout;
	uint8_t lengths[4 * COLUMNS_MOST], *length = lengths;
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)l->variable, sum = head + l->fixed,
		 rest = bytes > sum ? bytes - sum : 0;
	bool known = sized && l->variable == (l->size[l->column] == 0);

	s->value = s->begin + head;
	if (head <= bytes && !known && !get(m, s->begin, lengths, head))
		return false;
	for (unsigned i = 0; head <= bytes && i < l->columns; i++) {
		uint64_t column = l->size[i];

		if (l->size[i] == 0) {
			column = known ? rest : bytes_u32(length);
			length += 4;
			sum += column;
		}
		s->value += i < l->column ? column : 0;
		s->bytes = i == l->column ? column : s->bytes;
	}
	return sum == bytes || refuse(m,
				       "sample %" PRIu32 ": its lengths and columns take %" PRIu64
				       " bytes; its offsets span %" PRIu64,
				       s->number, sum, bytes);
}

/* The numbers of types are their bits, plus 1 if they are signed. */
static bool take_type(struct mds *m, struct sample *s, uint8_t code)
{
	for (s->type = SHARD_U8; s->type <= SHARD_I64; s->type++)
		if (code == 8 * shard_type_bytes(s->type) + shard_type_signed(s->type))
			return true;
	return refuse(m, "sample %" PRIu32 ": type is %u%s; must be 8, 9, 16, 17, 32, 33, 64 or 65",
		s->number, code,
		code == 18 || code == 34 || code == 66 ? ", a floating-point type" : "");
}

/* Finds the tokens in our column: all of a raw one, otherwise those after its type and shape. */
static bool look(struct mds *m, struct sample *s)
{
	const struct layout *l = &m->layout;
	uint8_t value[SHAPE_MOST] = {0};
	uint64_t count = 1, bytes;
	size_t n = 0;

	s->type = l->type;
	if (!l->raw) {
		if (!get(m, s->value, value, s->bytes < SHAPE_MOST ? s->bytes : SHAPE_MOST) ||
			(!l->has_type && !take_type(m, s, value[n++])))
			return false;
		unsigned dimensions = value[n] >> 2, width = 1u << (value[n] & 3);

		if (dimensions == 0)
			return refuse(m,
				"sample %" PRIu32 ": its shape has 0 dimensions; must have 1 to %d",
				s->number, DIMENSIONS_MOST);
		for (n++; dimensions > 0; dimensions--, n += width) {
			uint64_t dimension = 0;

			for (unsigned i = 0; i < width; i++)
				dimension |= (uint64_t)value[n + i] << 8 * i;
			/* No column has so many bytes, so it is refused. */
			if (__builtin_mul_overflow(count, dimension, &count))
				count = UINT64_MAX;
		}
	}
	uint64_t width = shard_type_bytes(s->type);

	if (l->raw)
		count = s->bytes / width;
	if (n > s->bytes || __builtin_mul_overflow(count, width, &bytes) || bytes != s->bytes - n)
		return refuse(m,
			"sample %" PRIu32 ": its shape makes %" PRIu64 " tokens of %" PRIu64
			" bytes; column `%s` has %" PRIu64
			" bytes, %zu of them for its shape: it is truncated, or dtype is wrong",
			s->number, count, width, l->name, s->bytes, n);
	s->at = s->value + n;
	s->tokens = count;
	return true;
}

/* The same by the size of our column: an array of one dimension, in the fewest bytes. */
static bool look_by_size(const struct mds *m, struct sample *s, enum shard_type type)
{
	uint64_t width = shard_type_bytes(type);

	for (unsigned bytes = 1; bytes <= 4 && !m->layout.raw; bytes *= 2) {
		uint64_t head = (uint64_t)!m->layout.has_type + 1 + bytes, n;

		if (s->bytes < head || (s->bytes - head) % width != 0)
			continue;
		n = (s->bytes - head) / width;
		if (n >> (8 * bytes) != 0 || (bytes > 1 && n >> (4 * bytes) == 0))
			continue;
		s->at = s->value + head;
		s->tokens = n;
		s->type = type;
		return true;
	}
	return false;
}

/* @first: NULL, or the first sample, if sizes tell what a sample holds. */
static bool find(struct mds *m, struct sample *s, const struct sample *first)
{
	return find_column(m, s, first) &&
	       ((first && look_by_size(m, s, first->type)) || look(m, s));
}

/* ---- the shard ---- */

static bool mds_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".mds");
}

static bool scan_samples(struct mds *m, struct shard_facts *facts, struct map *map)
{
	struct sample first = {0}, sized;
	bool alike = true, by_size = false;

	for (uint32_t i = 0; i < m->samples; i++) {
		struct sample s = {.number = i, .begin = offset(m, i), .end = offset(m, i + 1)};

		if (!find(m, &s, by_size ? &first : NULL))
			return false;
		if (i == 0) {
			first = sized = s;
			by_size = m->b->size > SMALL &&
				  (m->layout.raw ||
					  (look_by_size(m, &sized, s.type) && sized.at == s.at &&
						  sized.tokens == s.tokens));
			if (map)
				map->width = shard_type_bytes(s.type);
		}
		if (s.type != first.type)
			return refuse(m,
				"sample %" PRIu32
				" has tokens of %s, sample 0 of %s; all must have the same type",
				i, shard_type_name(s.type), shard_type_name(first.type));
		alike = alike && s.tokens == first.tokens;
		facts->tokens += s.tokens;
		if (map && !map_add(map, s.at, s.tokens, false))
			return fault_memory(m->fault);
	}
	facts->type = first.type;
	facts->row_tokens = alike ? first.tokens : 0;
	return true;
}

/* Whether samples are rows: windows, or not yet known to be others. */
static void judge_rows(const struct shard_hint *hint, struct shard_facts *facts, uint64_t samples)
{
	uint64_t row = hint->joined ? 0 : facts->row_tokens, window = hint->window_tokens;

	facts->row_tokens = row;
	if (row > 0 && (window == 0 || window == row)) {
		facts->sample_tokens = row;
		return;
	}
	facts->documents = samples;
	if (row > 0 && samples > 1)
		snprintf(facts->note, sizeof(facts->note),
			"all its samples have %" PRIu64
			" tokens, and are joined; to make each a window, set seq_len: %" PRIu64
			" and extra: 0",
			row, row);
}

static bool mds_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct mds m = {.b = b, .fault = s->fault};

	bool fine = read_front(&m) && read_config(&m, s->hint) && check_listed(&m, s->hint) &&
		    scan_samples(&m, facts, s->map);

	free(m.front);
	if (!fine)
		return false;
	snprintf(facts->column, sizeof(facts->column), "%s", m.layout.name);
	facts->plain = false;
	judge_rows(s->hint, facts, m.samples);
	return true;
}

/* If a shard is there both raw and compressed, the raw file is served. */
static const struct shard_companion companions[] = {
	{"/index.json", ".mds", "a Mosaic index by its name", .alone = false},
	{".mds.zstd", ".mds", "a compressed shard", .alone = true},
	{".mds.zst", ".mds", "a compressed shard", .alone = true},
	{0},
};

const struct shard_format shard_mds = {
	.name = "mds",
	.recognise = mds_recognise,
	.scan = mds_scan,
	.companions = companions,
	.indexed = true,
	.mixes_rows = true,
};
