/*
 * Mosaic's MDS: u32 n, u32 offsets[n + 1], a JSON config, then n samples. A sample is a u32 length
 * for each column of variable size, then the values of all columns. A value is raw, or begins with
 * its type and shape.
 *
 * Samples are rows, as in npy.c: if all of a dataset have the length of a window, each is one;
 * otherwise they are documents, which are joined. An empty sample is a document without tokens.
 *
 * A sample is raw, or an array of one dimension. So its size tells how many tokens it has, and what
 * its type and shape must be. Of a large shard, those of the first sample only are looked at, and
 * the others when they are read.
 *
 * index.json, in a shard's directory or its parent, lists the shards. The index and the files must
 * agree, so that a lost, a stray or a rewritten file does not silently change a run.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	COLUMNS_MOST = 256,
	CONFIG_MOST = 1 << 20,
	INDEX_MOST = 64 << 20, /* bytes of an index.json: a hundred thousand shards */
	SMALL = 1 << 20,       /* bytes; all samples of smaller shards are looked at */
	SOME = 1024,	       /* bytes of a sample, usually enough for its lengths and shape */
};

/* A shard that is being read. */
struct mds {
	const struct shard_scan *s;
	uint32_t samples;
	uint8_t *front; /* the first bytes: up to the first sample, and some of that */
	uint64_t front_bytes;

	unsigned lengths, lengths_before; /* number of columns of variable size; before ours */
	uint64_t fixed, fixed_before;	  /* bytes of the other columns; the same */
	uint32_t size;			  /* of our column; 0: variable */
	unsigned before; /* its values begin with 0: nothing, 1: a shape, 2: a type and a shape */
	enum shard_type type; /* before is 2: that of sample 0 */
	bool listed;	      /* in an index */
	struct columns columns;
};

struct sample {
	uint32_t number;
	uint64_t begin, end;   /* in the file */
	uint64_t value, bytes; /* of our column */
	uint64_t at, tokens;
};

#define refuse(m, ...) fault_data((m)->s->fault, __VA_ARGS__)

/* ---- index.json ---- */

/* By path of an index.json: its shards, by name of the raw file: samples, bytes. null: none there.
 */
struct mds_indexes {
	pthread_mutex_t lock;
	json_t *read;
};

struct mds_indexes *mds_indexes_new(void)
{
	struct mds_indexes *indexes = malloc(sizeof(*indexes));

	if (indexes)
		*indexes = (struct mds_indexes){PTHREAD_MUTEX_INITIALIZER, json_object()};
	return indexes;
}

void mds_indexes_free(struct mds_indexes *indexes)
{
	if (indexes)
		json_decref(indexes->read);
	free(indexes);
}

/* Whether the raw file @name exists next to the index, also compressed. */
static bool is_there(const struct bytes *index, const char *name)
{
	static const char *const endings[] = {"", ".zstd", ".zst"};
	const struct objects *objects = index->objects;
	int directory = (int)(bytes_name(index->path) - index->path);
	char path[PATH_MAX];
	struct object object;
	struct stat st;

	for (unsigned i = 0; i < 3; i++)
		if (snprintf(path, sizeof(path), "%.*s%s%s", directory, index->path, name,
			    endings[i]) < PATH_MAX &&
			(objects ? objects->find(objects->context, path, &object)
				 : stat(path, &st) == 0 && S_ISREG(st.st_mode)))
			return true;
	return false;
}

/* Adds all shards of an index, which must exist, to @to. */
static bool take_shards(const struct bytes *index, json_t *whole, json_t *to, struct fault *fault)
{
	json_t *shards;
	json_int_t samples, bytes, version;
	json_error_t error;
	const char *name;

	if (json_unpack_ex(
		    whole, &error, 0, "{s:I, s:o}", "version", &version, "shards", &shards) != 0)
		return fault_data(fault, "%s", error.text);
	if (!bytes_check(fault, version, 2, 2, "version"))
		return false;
	for (size_t i = 0; i < json_array_size(shards); i++) {
		if (json_unpack_ex(json_array_get(shards, i), &error, 0, "{s:I, s:{s:s, s:I}}",
			    "samples", &samples, "raw_data", "basename", &name, "bytes",
			    &bytes) != 0)
			return fault_data(fault, "shards[%zu]: %s", i, error.text);
		if (!is_there(index, name))
			return fault_data(fault,
				"shards[%zu] is '%.79s', but there is no such file; add it, or "
				"rewrite the index",
				i, name);
		if (json_object_set_new(to, name, json_pack("[II]", samples, bytes)) != 0)
			return fault_memory(fault);
	}
	return bytes_settled(index, fault);
}

static json_t *load_index(const struct bytes *index, struct fault *fault)
{
	json_t *whole = NULL, *shards = json_object();
	char *text = bytes_check(fault, index->size, 0, INDEX_MOST, "its size")
			     ? bytes_load(index, 0, index->size, fault)
			     : NULL;
	bool fine = text && (whole = json_object_of(text, index->size, fault)) &&
		    take_shards(index, whole, shards, fault);

	json_decref(whole);
	free(text);
	if (fine)
		return shards;
	json_decref(shards);
	fault_prefix(fault, "index.json: ");
	return NULL;
}

/* The index at @path, read now or for another shard. A failure is not kept. NULL: @fault. */
static const json_t *index_at(const struct shard_scan *s, const char *path)
{
	struct mds_indexes *indexes = s->hint->indexes;
	struct fault *fault = s->fault;
	struct bytes *file = NULL;

	pthread_mutex_lock(&indexes->lock);
	json_t *x = json_object_get(indexes->read, path);

	if (!x && bytes_open_side(s->b, path, &file, fault)) {
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

/* Checks the shard by the index, if there is one, that calls it @name, the end of @raw. */
static bool check_index(struct mds *m, const char *raw, const char *name)
{
	char path[PATH_MAX];
	json_int_t samples, bytes;

	snprintf(path, sizeof(path), "%.*sindex.json", (int)(name - raw), raw);
	const json_t *x = index_at(m->s, path);

	if (!x || json_is_null(x))
		return x;
	m->listed = true;
	if (json_unpack(json_object_get(x, name), "[II]", &samples, &bytes) != 0)
		return refuse(m,
			"is not among the %zu shards of %.200s; move it away, or rewrite the index",
			json_object_size(x), path);
	return (samples == m->samples && (uint64_t)bytes == m->s->b->size) ||
	       refuse(m,
		       "has %" PRIu32 " samples and %" PRIu64 " raw bytes; in %.200s it has "
		       "%" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT,
		       m->samples, m->s->b->size, path, samples, bytes);
}

/*
 * Checks that the indexes list the shard, with its size and number of samples, and that all shards
 * that they list exist: the index in its directory, and the one above, which is a merged one, and
 * calls the shard DIRECTORY/NAME.
 */
static bool check_listed(struct mds *m)
{
	const char *path = m->s->b->path, *end = bytes_ending(path, ".mds");
	char raw[PATH_MAX]; /* its path without .zst */

	snprintf(raw, sizeof(raw), "%.*s", end ? (int)(end - path) + 4 : PATH_MAX, path);
	const char *name = bytes_name(raw), *up = name;

	while (up > raw && (up == name || up[-1] != '/'))
		up--;
	return check_index(m, raw, name) && (up == name || *up == '/' || check_index(m, raw, up));
}

/* ---- columns ---- */

/*
 * Whether a column of this encoding holds tokens: `bytes`, `ndarray`, `ndarray:TYPE`, or
 * `ndarray:TYPE:SIZE`, whose values are raw, too. Fills the members of @m that depend on it.
 */
static bool encoding(struct mds *m, const char *text)
{
	const struct shard_hint *hint = m->s->hint;
	char name[24];

	m->before = strcmp(text, "bytes") == 0 ? 0 : 2;
	m->s->facts->believed = m->before == 0;
	m->type = hint->has_type ? hint->type : SHARD_I64;
	if (m->before == 0 || strcmp(text, "ndarray") == 0)
		return true;
	for (m->type = SHARD_U8; m->type <= SHARD_I64; m->type++) {
		int n = snprintf(name, sizeof(name), "ndarray:%sint%u",
			shard_type_signed(m->type) ? "" : "u", 8 * shard_type_bytes(m->type));

		if (strncmp(text, name, (size_t)n) == 0 &&
			(text[n] == 0 || (text[n] == ':' && !strchr(text, ',')))) {
			m->before = text[n] == 0;
			return true;
		}
	}
	return false;
}

static bool lay_out(struct mds *m, json_t *config)
{
	const char *wanted = m->columns.wanted, *text = NULL;
	char *column = m->s->facts->column; /* printable */
	json_t *names, *encodings, *sizes;
	json_int_t version, bytes;
	json_error_t error;

	if (json_unpack_ex(config, &error, 0, "{s:I, s:o, s:o, s:o}", "version", &version,
		    "column_names", &names, "column_encodings", &encodings, "column_sizes",
		    &sizes) != 0)
		return refuse(m, "%s", error.text);
	size_t columns = json_array_size(names);
	bool fine = columns <= COLUMNS_MOST && json_array_size(encodings) == columns &&
		    json_array_size(sizes) == columns;

	for (size_t i = 0; fine && i < columns; i++) {
		const json_t *size = json_array_get(sizes, i);
		const char *name = json_string_value(json_array_get(names, i));

		bytes = json_integer_value(size); /* of null: 0 */
		fine = (json_is_null(size) || json_is_integer(size)) && bytes >= 0 &&
		       bytes <= UINT32_MAX;
		if (columns_take(&m->columns, name ? name : "")) {
			snprintf(column, sizeof(m->s->facts->column), "%s", name ? name : "");
			text = json_string_value(json_array_get(encodings, i));
			m->lengths_before = m->lengths;
			m->fixed_before = m->fixed;
			m->size = (uint32_t)bytes;
		}
		m->lengths += bytes == 0;
		m->fixed += (uint64_t)bytes;
	}
	if (!bytes_check(m->s->fault, version, 2, 2, "version"))
		return false;
	if (!fine)
		return refuse(m,
			"column_names, column_encodings and column_sizes must be arrays of the "
			"same length, at most %d, and sizes be null or below 2^32",
			COLUMNS_MOST);
	if (m->columns.times != 1 || (wanted && m->columns.best < 2))
		return refuse(m,
			"has %s column %s; set `column` to the one of column_names with the tokens",
			m->columns.best < 2 ? "no" : "more than one",
			wanted ? wanted : "tokens or input_ids");
	fault_line(column);
	return (text && encoding(m, text)) ||
	       refuse(m,
		       "column `%s` is encoded as `%.47s`; must be bytes, or "
		       "ndarray[:DTYPE[:SIZE]] of one dimension, with an integer type",
		       column, text ? text : "");
}

/* ---- the front ---- */

static uint32_t offset(const struct mds *m, uint64_t i)
{
	return bytes_u32(m->front + 4 + 4 * i);
}

/* Reads the offsets, the config and some of the first sample. */
static bool read_front(struct mds *m)
{
	uint64_t size = m->s->b->size, first = bytes_u32(m->s->b->head + 4), last = first;

	m->samples = bytes_u32(m->s->b->head);
	uint64_t table = 4 + 4 * ((uint64_t)m->samples + 1),
		 most = size - table < CONFIG_MOST ? size : table + CONFIG_MOST;

	if (!bytes_check(m->s->fault, m->samples, 1, size < 8 ? 0 : (size - 8) / 4,
		    "number of samples") ||
		!bytes_check(m->s->fault, first, table, most, "offset 0"))
		return false;
	m->front_bytes = first + SOME < size ? first + SOME : size;
	m->front = malloc(m->front_bytes);
	if (!m->front)
		return fault_memory(m->s->fault);
	/* Tokens are where a frame says of which the checksum is right. */
	if (!(m->s->map->counts ? bytes_begin(m->s->b, m->front, m->front_bytes, m->s->fault)
				: bytes_read(m->s->b, 0, m->front, m->front_bytes, m->s->fault)))
		return false;
	/* They ascend from what was read before to the end of the file. */
	for (uint64_t i = 0; i <= m->samples; last = offset(m, i++))
		if (!bytes_check(m->s->fault, offset(m, i), i == m->samples ? size : last,
			    i == 0 ? first : size, "offset %" PRIu64, i))
			return false;
	return true;
}

static bool read_config(struct mds *m)
{
	uint64_t from = 4 + 4 * ((uint64_t)m->samples + 1);
	json_t *config =
		json_object_of((const char *)m->front + from, offset(m, 0) - from, m->s->fault);
	bool fine = config && lay_out(m, config);

	json_decref(config);
	return fine || fault_prefix(m->s->fault, "config: ");
}

/* ---- samples ---- */

/* Like bytes_read(), which the front spares. */
static bool get(const struct mds *m, uint64_t at, void *to, size_t n)
{
	if (at + n > m->front_bytes)
		return bytes_read(m->s->b, at, to, n, m->s->fault);
	memcpy(to, m->front + at, n);
	return true;
}

/*
 * Finds our column in a sample, whose lengths must add up to its size. @read: otherwise our length,
 * if it is the only one, is not read.
 */
static bool find_column(const struct mds *m, struct sample *s, bool read)
{
	uint8_t lengths[4 * COLUMNS_MOST];
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)m->lengths, sum = head + m->fixed;
	bool known = !read && m->lengths == 1 && m->size == 0 && sum <= bytes;

	s->value = s->begin + head + m->fixed_before;
	s->bytes = m->size;
	if (!known && sum <= bytes && !get(m, s->begin, lengths, head))
		return false;
	for (unsigned i = 0; sum <= bytes && i < m->lengths; i++) {
		uint64_t length = known ? bytes - sum : bytes_u32(lengths + 4 * i);

		sum += length;
		if (i < m->lengths_before)
			s->value += length;
		else if (i == m->lengths_before && m->size == 0)
			s->bytes = length;
	}
	return sum == bytes || refuse(m,
				       "sample %" PRIu32 ": its lengths and columns take %" PRIu64
				       " bytes; its offsets span %" PRIu64,
				       s->number, sum, bytes);
}

/* The number of a type: its bits, plus 1 if it is signed. */
static uint8_t number_of(enum shard_type type)
{
	return (uint8_t)(8 * shard_type_bytes(type) + shard_type_signed(type));
}

/* Reads the type of all samples from sample 0. */
static bool read_type(struct mds *m, const struct sample *s)
{
	uint8_t number = 0;

	if (!get(m, s->value, &number, s->bytes > 0))
		return false;
	for (m->type = SHARD_U8; m->type <= SHARD_I64; m->type++)
		if (number == number_of(m->type))
			return true;
	return refuse(m,
		"sample 0: type is %u; must be 8, 9, 16, 17, 32, 33, 64 or 65; others are "
		"floating-point",
		number);
}

unsigned mds_header(
	unsigned before, enum shard_type type, uint64_t tokens, uint8_t to[SHARD_HEADER_MOST])
{
	unsigned width = tokens >> 16 ? 2 : tokens >> 8 ? 1 : 0, bytes = 1u << width;

	if (before == 0)
		return 0;
	to[0] = number_of(type);
	to[before - 1] = (uint8_t)(1 << 2 | width);
	for (unsigned i = 0; i < bytes; i++)
		to[before + i] = (uint8_t)(tokens >> 8 * i);
	return before + bytes;
}

/* Finds the tokens of a sample by its size. @read: what is before them must be as that tells. */
static bool find_tokens(const struct mds *m, struct sample *s, bool read)
{
	uint8_t header[SHARD_HEADER_MOST], found[SHARD_HEADER_MOST];
	uint64_t width = shard_type_bytes(m->type);
	bool fits = false;

	for (unsigned bytes = 1; bytes <= 4 && !fits; bytes *= 2) { /* of its number of tokens */
		unsigned n = m->before > 0 ? m->before + bytes : 0;

		s->at = s->value + n;
		s->tokens = (s->bytes - n) / width;
		fits = n <= s->bytes && (s->bytes - n) % width == 0 &&
		       mds_header(m->before, m->type, s->tokens, header) == n;
	}
	if (fits && read) {
		if (!get(m, s->value, found, s->at - s->value))
			return false;
		fits = memcmp(found, header, s->at - s->value) == 0;
	}
	return fits ||
	       refuse(m,
		       "sample %" PRIu32 ": the %" PRIu64
		       " bytes of column `%s` must be an array of one dimension of %s: it is "
		       "damaged, dtype is wrong, or the samples have other dimensions or types; "
		       "write the shard again, all samples alike",
		       s->number, s->bytes, m->s->facts->column, shard_type_name(m->type));
}

/* ---- the shard ---- */

/* If most samples are as long as a window, a remark names the first that is not. */
static bool scan_samples(struct mds *m)
{
	const struct shard_hint *hint = m->s->hint;
	struct shard_facts *facts = m->s->facts;
	struct map *map = m->s->map;
	bool alike = !hint->joined, large = m->s->b->size > SMALL;
	uint64_t first = 0, window = hint->window_tokens;
	uint32_t windows = 0, odd = m->samples;

	for (uint32_t i = 0; i < m->samples; i++) {
		struct sample s = {.number = i, .begin = offset(m, i), .end = offset(m, i + 1)};
		bool read = i == 0 || !large;

		if (!find_column(m, &s, read) || (i == 0 && m->before == 2 && !read_type(m, &s)) ||
			!find_tokens(m, &s, read))
			return false;
		if (i == 0) {
			first = s.tokens;
			map->width = shard_type_bytes(m->type);
			map->presumed = large ? m->before : 0;
			map->scattered = map->presumed > 0;
		}
		alike = alike && s.tokens == first;
		windows += s.tokens == window;
		if (s.tokens != window && odd == m->samples)
			odd = i;
		map_add(map, s.at, s.tokens, false);
	}
	facts->type = m->type;
	facts->row_tokens = alike ? first : 0;
	if (facts->row_tokens > 0 && (window == 0 || window == first))
		facts->sample_tokens = first;
	else
		facts->documents = m->samples;
	if (window > 0 && odd < m->samples && windows > m->samples / 2)
		snprintf(facts->note, sizeof(facts->note),
			"sample %" PRIu32 " is not as long as a window, as most are; so all of the "
			"dataset are joined, and windows run over their ends",
			odd);
	return true;
}

static bool mds_scan(const struct shard_scan *s)
{
	struct mds m = {.s = s, .columns.wanted = s->hint->column};
	bool fine = read_front(&m) && read_config(&m) && (!s->hint->indexes || check_listed(&m)) &&
		    scan_samples(&m);

	free(m.front);
	columns_doubt(&m.columns, s);
	if (s->hint->indexes && !m.listed && !s->facts->note[0])
		snprintf(s->facts->note, sizeof(s->facts->note),
			"no index.json lists the shards, so some may be missing; write one with "
			"streaming.base.util.merge_index");
	return fine;
}

const struct shard_format shard_mds = {
	.name = "mds",
	.ending = ".mds",
	.scan = mds_scan,
	.indexed = true,
	.mixes_rows = true,
};
