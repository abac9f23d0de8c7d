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

/* A shard that is being read. */
struct mds {
	const struct bytes *b;
	struct fault *fault;
	uint32_t samples;
	uint8_t *front; /* the first bytes: up to the first sample, and some of that */
	uint64_t front_bytes;

	unsigned columns;
	unsigned column;	     /* index of the one with the tokens */
	uint32_t size[COLUMNS_MOST]; /* of each column; 0: variable, stored in each sample */
	unsigned variable;	     /* number of variable columns */
	uint64_t fixed;		     /* total bytes of the others */
	char name[SHOWN];	     /* of the column, printable */
	bool has_type;		     /* otherwise its values begin with their type */
	bool raw;		     /* otherwise a shape comes next */
	enum shard_type type;
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

/* By path of an index.json: its shards, by name of the raw file: samples, bytes. null: none there.
 */
struct mds_indexes {
	pthread_mutex_t lock;
	json_t *read;
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
	indexes->read = json_object();
	memcpy(indexes->root, root, n);
	while (n > 0 && root[n - 1] == '/')
		n--;
	indexes->root_bytes = n;
	return indexes;
}

void mds_indexes_free(struct mds_indexes *indexes)
{
	if (indexes) {
		json_decref(indexes->read);
		pthread_mutex_destroy(&indexes->lock);
	}
	free(indexes);
}

/* Whether the raw file @name exists, also compressed. */
static bool is_there(const struct bytes *index, const char *name)
{
	static const char *const endings[] = {"", ".zstd", ".zst"};
	const struct objects *objects = index->objects;
	int directory = (int)(bytes_name(index->path) - index->path);
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	for (unsigned i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		if (snprintf(path, sizeof(path), "%.*s%s%s", directory, index->path, name,
			    endings[i]) < (int)sizeof(path) &&
			(objects ? objects->find(objects->context, path, &object)
				 : stat(path, &st) == 0 && S_ISREG(st.st_mode)))
			return true;
	return false;
}

static bool take_shard(
	const struct bytes *index, size_t number, json_t *shard, json_t *to, struct fault *fault)
{
	json_int_t samples, bytes;
	json_error_t error;
	const char *name;
	char shown[80];

	if (json_unpack_ex(shard, &error, 0, "{s:I, s:{s:s, s:I}}", "samples", &samples, "raw_data",
		    "basename", &name, "bytes", &bytes) != 0)
		return fault_data(fault, "shards[%zu]: %s", number,
			json_shown(error.text, shown, sizeof(shown)));
	if (!is_there(index, name))
		return fault_data(fault,
			"shards[%zu] is '%s', but there is no such file; add it, or rewrite the "
			"index",
			number, json_shown(name, shown, sizeof(shown)));
	return json_object_set_new(to, name, json_pack("[II]", samples, bytes)) == 0 ||
	       fault_memory(fault);
}

static json_t *load_index(const struct bytes *index, struct fault *fault)
{
	char *text = NULL;
	json_t *whole = NULL, *shards = NULL, *found = json_object();
	bool fine = bytes_check(fault, index->size, 0, INDEX_MOST, "its size") &&
		    (text = bytes_load(index, 0, index->size, fault)) &&
		    (whole = json_object_of(text, index->size, fault));

	if (fine && !json_is_array(shards = json_object_get(whole, "shards")))
		fine = fault_data(fault, "shards is %s; must be an array", json_kind(shards));
	for (size_t i = 0; fine && i < json_array_size(shards); i++)
		fine = take_shard(index, i, json_array_get(shards, i), found, fault);
	json_decref(whole);
	free(text);
	if (fine && bytes_settled(index, fault))
		return found;
	json_decref(found);
	fault_prefix(fault, "index.json: ");
	return NULL;
}

/* The index at @path, read now or for another shard. A failure is not kept. NULL: @fault. */
static const json_t *index_at(struct mds_indexes *indexes, const struct bytes *shard,
	const char *path, struct fault *fault)
{
	struct bytes *file = NULL;

	pthread_mutex_lock(&indexes->lock);
	json_t *x = json_object_get(indexes->read, path);

	if (!x && bytes_open_side(shard, path, &file, fault)) {
		x = file ? load_index(file, fault) : json_null();
		bytes_close(file);
		if (x && json_object_set_new_nocheck(indexes->read, path, x) != 0) {
			fault_memory(fault);
			x = NULL;
		}
	}
	pthread_mutex_unlock(&indexes->lock);
	return x;
}

/*
 * Writes the absolute path of the raw shard to @to[PATH_MAX]: the names of its directory and of the
 * parent are needed. False: @fault.
 */
static bool raw_path(const struct bytes *b, char *to, struct fault *fault)
{
	const char *name = bytes_name(b->path), *end = bytes_ending(b->path, ".mds");
	int n = (int)(name - b->path);
	char directory[PATH_MAX];

	snprintf(to, PATH_MAX, "%.*s", n - 1, b->path);
	snprintf(directory, sizeof(directory), "%.*s.", n, b->path);
	if (!b->objects &&
		(b->path[0] != '/' || strstr(b->path, "/./") || strstr(b->path, "/../")) &&
		!realpath(directory, to))
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	size_t at = strlen(to);

	return snprintf(to + at, PATH_MAX - at, "/%.*s", end ? (int)(end - name) + 4 : PATH_MAX,
		       name) < (int)(PATH_MAX - at) ||
	       fault_errno(fault, ENAMETOOLONG, "", "%s", strerror(ENAMETOOLONG));
}

/* Checks the shard by the index that calls it @name, the end of @raw. *@absent: there is none. */
static bool check_index(const struct mds *m, struct mds_indexes *indexes, const char *raw,
	const char *name, bool *absent)
{
	const struct bytes *b = m->b;
	char path[PATH_MAX];
	json_int_t samples, bytes;

	snprintf(path, sizeof(path), "%.*sindex.json", (int)(name - raw), raw);
	const json_t *x = index_at(indexes, b, path, m->fault);

	*absent = json_is_null(x);
	if (!x || *absent)
		return x;
	if (json_unpack(json_object_get(x, name), "[II]", &samples, &bytes) != 0)
		return refuse(m,
			"is not among the %zu shards of %.200s; move it away, or rewrite the index",
			json_object_size(x), path);
	return (samples == m->samples && (uint64_t)bytes == b->size) ||
	       refuse(m,
		       "has %" PRIu32 " samples and %" PRIu64 " bytes%s; in %.200s it has "
		       "%" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT,
		       m->samples, b->size, b->plain ? "" : " when decoded", path, samples, bytes);
}

/*
 * Checks that the indexes list the shard, with its size and number of samples, and that all shards
 * that they list exist. The index of the parent, a merged one, which calls the shard
 * DIRECTORY/NAME, is checked if it belongs to the dataset or is the only one.
 */
static bool check_listed(const struct mds *m, const struct shard_hint *hint)
{
	struct mds_indexes *indexes = hint->indexes ? hint->indexes : mds_indexes_new("");
	char raw[PATH_MAX];
	bool fine = indexes ? raw_path(m->b, raw, m->fault) : fault_memory(m->fault), absent;

	if (fine) {
		const char *name = bytes_name(raw), *up = name - 1;
		size_t root = indexes->root_bytes;

		while (up > raw && up[-1] != '/')
			up--;
		fine = check_index(m, indexes, raw, name, &absent);
		if (fine && up > raw &&
			(absent || (root > 0 && (size_t)(up - raw) > root && raw[root] == '/' &&
					   memcmp(raw, indexes->root, root) == 0)))
			fine = check_index(m, indexes, raw, up, &absent);
	}
	if (!hint->indexes)
		mds_indexes_free(indexes);
	return fine;
}

/* ---- columns ---- */

/*
 * Whether a column of this encoding holds tokens: `bytes`, `ndarray`, `ndarray:TYPE`, or
 * `ndarray:TYPE:SHAPE`, whose values are raw, too. Fills the members of @m that depend on it.
 */
static bool encoding(const char *text, const struct shard_hint *hint, struct mds *m)
{
	char name[24];

	m->has_type = m->raw = strcmp(text, "bytes") == 0;
	m->type = hint->has_type ? hint->type : SHARD_I64;
	if (m->raw || strcmp(text, "ndarray") == 0)
		return true;
	m->has_type = true;
	for (m->type = SHARD_U8; m->type <= SHARD_I64; m->type++) {
		int n = snprintf(name, sizeof(name), "ndarray:%sint%u",
			shard_type_signed(m->type) ? "" : "u", 8 * shard_type_bytes(m->type));

		m->raw = strncmp(text, name, (size_t)n) == 0 && text[n] == ':';
		if (m->raw || strcmp(text, name) == 0)
			return true;
	}
	return false;
}

/* The config's three arrays, of m->columns columns each. */
struct columns {
	json_t *names, *encodings, *sizes;
};

static const char *text_of(const json_t *array, size_t i)
{
	return json_string_value(json_array_get(array, i));
}

/* Checks the arrays. Names ascend, as they are written. */
static bool read_columns(struct mds *m, const struct columns *c)
{
	size_t n = json_array_size(c->names);
	bool fine = n > 0 && n <= COLUMNS_MOST && json_array_size(c->encodings) == n &&
		    json_array_size(c->sizes) == n;

	for (unsigned i = 0; fine && i < n; i++) {
		const json_t *size = json_array_get(c->sizes, i);
		json_int_t bytes = json_integer_value(size);

		fine = text_of(c->names, i) && text_of(c->encodings, i) &&
		       (json_is_null(size) || json_is_integer(size)) && bytes >= 0 &&
		       bytes <= UINT32_MAX &&
		       (i == 0 || strcmp(text_of(c->names, i), text_of(c->names, i - 1)) > 0);
		m->size[i] = (uint32_t)bytes;
		m->variable += bytes == 0;
		m->fixed += m->size[i];
	}
	m->columns = (unsigned)n;
	return fine || refuse(m,
			       "column_names, column_encodings and column_sizes must be arrays of "
			       "the same length, 1 to %d, of names that ascend, encodings, and "
			       "null or numbers below 2^32",
			       COLUMNS_MOST);
}

/* Chooses the config's column; otherwise one with llm-foundry's names; otherwise the only one. */
static bool choose(struct mds *m, const json_t *names, const char *name)
{
	const char *const wanted[] = {name ? name : "tokens", name ? name : "input_ids"};

	for (unsigned i = 0; i < 2 * m->columns; i++) {
		m->column = i % m->columns;
		if (strcmp(text_of(names, m->column), wanted[i / m->columns]) == 0)
			return true;
	}
	return !name && m->columns == 1;
}

static bool lay_out(struct mds *m, json_t *config, const struct shard_hint *hint)
{
	struct columns c;
	json_error_t error;
	json_int_t version;
	char shown[SHOWN];

	if (json_unpack_ex(config, &error, 0, "{s:I, s:o, s:o, s:o}", "version", &version,
		    "column_names", &c.names, "column_encodings", &c.encodings, "column_sizes",
		    &c.sizes) != 0)
		return refuse(m, "%s", json_shown(error.text, shown, sizeof(shown)));
	if (!bytes_check(m->fault, version, 2, 2, "version") || !read_columns(m, &c))
		return false;
	if (!choose(m, c.names, hint->column))
		return refuse(m,
			"has no column %s; set `column` to the one of column_names with the tokens",
			hint->column ? hint->column : "tokens or input_ids");
	const char *text = text_of(c.encodings, m->column);

	json_shown(text_of(c.names, m->column), m->name, sizeof(m->name));
	return encoding(text, hint, m) ||
	       refuse(m,
		       "column `%s` is encoded as `%s`; must be bytes, or ndarray[:DTYPE[:SHAPE]] "
		       "with an integer type",
		       m->name, json_shown(text, shown, sizeof(shown)));
}

/* ---- the front ---- */

static uint32_t offset(const struct mds *m, uint64_t i)
{
	return bytes_u32(m->front + 4 + 4 * i);
}

/* Reads the offsets, the config and some of the first sample. */
static bool read_front(struct mds *m)
{
	uint64_t size = m->b->size, last;
	uint8_t head[8] = {0};

	if (!bytes_begin(m->b, head, size < sizeof(head) ? size : sizeof(head), m->fault))
		return false;
	m->samples = bytes_u32(head);
	uint64_t first = bytes_u32(head + 4), table = 4 + 4 * ((uint64_t)m->samples + 1),
		 most = size - table < CONFIG_MOST ? size : table + CONFIG_MOST;

	if (!bytes_check(
		    m->fault, m->samples, 1, size < 8 ? 0 : (size - 8) / 4, "number of samples") ||
		!bytes_check(m->fault, first, table, most, "offset 0"))
		return false;
	m->front_bytes = first + SOME < size ? first + SOME : size;
	m->front = malloc(m->front_bytes);
	if (!m->front)
		return fault_memory(m->fault);
	if (!bytes_begin(m->b, m->front, m->front_bytes, m->fault))
		return false;
	/* They ascend from what was read before to the end of the file. */
	last = first;
	for (uint64_t i = 0; i <= m->samples; last = offset(m, i++))
		if (!bytes_check(m->fault, offset(m, i), i == m->samples ? size : last,
			    i == 0 ? first : size, "offset %" PRIu64, i))
			return false;
	return true;
}

static bool read_config(struct mds *m, const struct shard_hint *hint)
{
	uint64_t from = 4 + 4 * ((uint64_t)m->samples + 1);
	json_t *config =
		json_object_of((const char *)m->front + from, offset(m, 0) - from, m->fault);
	bool fine = config && lay_out(m, config, hint);

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
	uint8_t lengths[4 * COLUMNS_MOST], *length = lengths;
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)m->variable, sum = head + m->fixed;
	bool known = sized && m->variable == (m->size[m->column] == 0);

	s->value = s->begin + head;
	if (sum <= bytes && !known && !get(m, s->begin, lengths, head))
		return false;
	for (unsigned i = 0; sum <= bytes && i < m->columns; i++) {
		uint64_t column = m->size[i];

		if (column == 0) {
			column = known ? bytes - sum : bytes_u32(length);
			length += 4;
			sum += column;
		}
		s->value += i < m->column ? column : 0;
		s->bytes = i == m->column ? column : s->bytes;
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
	uint8_t value[SHAPE_MOST] = {0};
	uint64_t count = 1, bytes;
	size_t n = 0;

	s->type = m->type;
	if (!m->raw) {
		if (!get(m, s->value, value, s->bytes < SHAPE_MOST ? s->bytes : SHAPE_MOST) ||
			(!m->has_type && !take_type(m, s, value[n++])))
			return false;
		unsigned dimensions = value[n] >> 2, width = 1u << (value[n] & 3);

		if (dimensions == 0)
			return refuse(m,
				"sample %" PRIu32 ": its shape has 0 dimensions; must have 1 to %d",
				s->number, DIMENSIONS_MOST);
		for (n++; dimensions > 0; dimensions--, n += width) {
			uint64_t dimension = bytes_u64(value + n) & UINT64_MAX >> (64 - 8 * width);

			/* No column has so many bytes, so it is refused. */
			if (__builtin_mul_overflow(count, dimension, &count))
				count = UINT64_MAX;
		}
	}
	uint64_t width = shard_type_bytes(s->type);

	if (m->raw)
		count = s->bytes / width;
	if (n > s->bytes || __builtin_mul_overflow(count, width, &bytes) || bytes != s->bytes - n)
		return refuse(m,
			"sample %" PRIu32 ": its shape makes %" PRIu64 " tokens of %" PRIu64
			" bytes; column `%s` has %" PRIu64
			" bytes, %zu of them for its shape: it is truncated, or dtype is wrong",
			s->number, count, width, m->name, s->bytes, n);
	s->at = s->value + n;
	s->tokens = count;
	return true;
}

/* The same by the size of our column: an array of one dimension, in the fewest bytes. */
static bool look_by_size(const struct mds *m, struct sample *s, enum shard_type type)
{
	uint64_t width = shard_type_bytes(type);

	for (unsigned bytes = 1; bytes <= 4 && !m->raw; bytes *= 2) {
		uint64_t head = (uint64_t)!m->has_type + 1 + bytes, n;

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

/* Whether sizes tell what samples hold, as they do of the first. */
static bool are_sized(const struct mds *m, const struct sample *first)
{
	struct sample s = *first;

	return m->raw ||
	       (look_by_size(m, &s, s.type) && s.at == first->at && s.tokens == first->tokens);
}

/* ---- the shard ---- */

static bool mds_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".mds");
}

static bool scan_samples(struct mds *m, struct shard_facts *facts, struct map *map)
{
	struct sample first = {0};
	bool alike = true, sized = false;

	for (uint32_t i = 0; i < m->samples; i++) {
		struct sample s = {.number = i, .begin = offset(m, i), .end = offset(m, i + 1)};

		if (!find_column(m, &s, sized) ||
			!((sized && look_by_size(m, &s, first.type)) || look(m, &s)))
			return false;
		if (i == 0) {
			first = s;
			sized = m->b->size > SMALL && are_sized(m, &s);
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
	snprintf(facts->column, sizeof(facts->column), "%s", m.name);
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
