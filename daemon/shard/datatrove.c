/*
 * datatrove's .ds (nanotron): tokens without a header, u16 or u32. Optional side files: X.ds.index
 * has the end of each document as a u64, in tokens. X.ds.metadata is text: line 1 ends in the width
 * of a token, line 2 is the number of tokens. Older metadata has no width. The side files must
 * agree with the size of the shard; values that are missing are derived from the others.
 */
#include "daemon/shard/format.h"
#include "daemon/shard/spans.h"
#include "proto/phrases.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
	METADATA_MOST = 64 * 1024,
	AT_ONCE = 4096, /* ends that are read at a time */
	SMALL = 1
		<< 16, /* bytes; indexes up to this size are checked when the shard is described */
};

struct shard_index {
	struct spans spans; /* of all tokens; empty documents are left out */
};

/* The values in .ds.metadata. */
struct metadata {
	bool has_width, has_count;
	uint64_t width, count;
};

static bool datatrove_recognise(const struct bytes *b)
{
	return bytes_ending(b->path, ".ds");
}

/*
 * Opens the shard's side file, whose name has @ending instead of .ds; *@b is NULL if there is none.
 */
static bool open_side(
	const struct bytes *shard, const char *ending, struct bytes **b, struct fault *fault)
{
	char path[PATH_MAX];

	*b = NULL;
	if (!bytes_side_path(shard->path, ".ds", ending, path, sizeof(path)))
		return true; /* a shard of another name has no side files */
	return bytes_open_side(shard, path, b, fault);
}

/* ---- metadata ---- */

/* Parses an integer from @text to @end, which may have trailing spaces and a CR. */
static bool number(const char *text, const char *end, uint64_t *value)
{
	bool any = false;

	*value = 0;
	while (end > text && (end[-1] == '\r' || end[-1] == ' '))
		end--;
	for (; text < end; text++, any = true)
		if (*text < '0' || *text > '9' || __builtin_mul_overflow(*value, 10, value) ||
			__builtin_add_overflow(*value, (uint64_t)(*text - '0'), value))
			return false;
	return any;
}

/* Reports that a field has the value @text, which has @n bytes. */
static bool refuse_line(
	const char *field, const char *text, size_t n, const char *wanted, struct fault *fault)
{
	char shown[41];

	return fault_set(fault, FAULT_DATA, "", ".ds.metadata: %s, is '%s'; must be %s", field,
		bytes_shown(text, n, shown, sizeof(shown)), wanted);
}

/*
 * Line 1 is "TOKENIZER|WIDTH"; the tokenizer's name may contain bars. Older files have no bar and
 * no width.
 */
static bool parse_metadata(const char *text, size_t n, struct metadata *m, struct fault *fault)
{
	const char *end = text + n, *first = memchr(text, '\n', n);

	if (!first)
		first = end;
	const char *bar = memrchr(text, '|', (size_t)(first - text));

	m->has_width = bar && number(bar + 1, first, &m->width);
	if (bar && !m->has_width && (bar + 1 == first || strchr("+-0123456789", bar[1])))
		return refuse_line(
			"token size, line 1", bar + 1, (size_t)(first - bar) - 1, "2 or 4", fault);
	if (m->has_width && m->width != 2 && m->width != 4)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: token size, line 1, is %" PRIu64 "; must be 2 or 4",
			m->width);
	if (first == end)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: its %zu bytes have no line 2, the token count: the file is "
			"truncated",
			n);
	const char *line = first + 1, *second = memchr(line, '\n', (size_t)(end - line));

	if (!second)
		second = end;
	m->has_count = number(line, second, &m->count);
	return m->has_count || refuse_line("token count, line 2", line, (size_t)(second - line),
				       "an integer", fault);
}

static bool read_metadata(const struct bytes *b, struct metadata *m, struct fault *fault)
{
	struct bytes *file;

	*m = (struct metadata){0};
	if (!open_side(b, ".ds.metadata", &file, fault))
		return false;
	if (!file)
		return true;
	char *text = NULL;
	bool fine = false;

	if (file->size > METADATA_MOST) {
		fault_set(fault, FAULT_DATA, "",
			".ds.metadata: its size is %" PRIu64 " bytes; must be at most %d",
			file->size, METADATA_MOST);
	} else {
		text = malloc(file->size + 1);
		fine = text ? bytes_read(file, 0, text, file->size, fault) &&
				       parse_metadata(text, file->size, m, fault)
			    : fault_memory(fault);
	}
	free(text);
	bytes_close(file);
	return fine;
}

/* ---- describing ---- */

/* Reads the number of documents and the end of the last one. @index may be NULL. */
static bool read_ends(
	const struct bytes *index, struct shard_facts *facts, uint64_t *last, struct fault *fault)
{
	uint8_t end[8];

	*last = 0;
	if (!index)
		return true;
	if (index->size % 8 != 0)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: %" PRIu64
			" bytes is not a multiple of 8: the file is truncated",
			index->size);
	facts->index = index->id;
	facts->documents = index->size / 8;
	if (facts->documents == 0)
		return true;
	if (!bytes_read(index, index->size - 8, end, 8, fault))
		return false;
	*last = bytes_u64(end);
	return true;
}

/*
 * The width of a token: that of a manifest or the metadata; otherwise the file's size divided by
 * the number of tokens, if the metadata or the index has that; otherwise the config's.
 */
static uint64_t width_of(const struct bytes *b, const struct shard_hint *hint,
	const struct metadata *m, uint64_t last)
{
	uint64_t count = m->has_count ? m->count : last;

	if (hint->listed)
		return shard_type_bytes(hint->listed->type);
	if (m->has_width)
		return m->width;
	if (count > 0 && b->size % count == 0 && (b->size / count == 2 || b->size / count == 4))
		return b->size / count;
	return shard_type_bytes(hint->type);
}

static bool describe(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	struct metadata m = {0};
	uint64_t last;

	facts->plain = true;
	/* A manifest has what the metadata say. */
	if ((!hint->listed && !read_metadata(b, &m, fault)) ||
		!read_ends(index, facts, &last, fault))
		return false;
	uint64_t width = width_of(b, hint, &m, last);

	if (b->size % width != 0)
		return fault_set(fault, FAULT_DATA, "",
			"%" PRIu64 " bytes is not a multiple of %" PRIu64 ", the token size%s",
			b->size, width,
			m.has_width ? " in .ds.metadata: the file is truncated"
				    : "; the file is truncated, or dtype is wrong");
	facts->type = width == 2 ? SHARD_U16 : SHARD_U32;
	facts->tokens = b->size / width;
	if (m.has_count && m.count != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.metadata: token count is %" PRIu64 "; the file has %" PRIu64
			" tokens of %" PRIu64 " bytes",
			m.count, facts->tokens, width);
	if (facts->documents != SHARD_UNKNOWN && last != facts->tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: the last document%s ends at token %" PRIu64
			"; the file has %" PRIu64 " tokens of %" PRIu64 " bytes",
			facts->documents == 0 ? " (there is none)" : "", last, facts->tokens,
			width);
	return true;
}

/* ---- documents ---- */

/* Adds document @i, which ends before token @end. */
static bool take_end(
	struct spans *spans, uint64_t i, uint64_t end, uint64_t tokens, struct fault *fault)
{
	if (end < spans->end)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: document %" PRIu64 " ends at token %" PRIu64
			", before the previous one (%" PRIu64 "); ends must ascend",
			i, end, spans->end);
	if (end > tokens)
		return fault_set(fault, FAULT_DATA, "",
			".ds.index: document %" PRIu64 " ends at token %" PRIu64
			"; the file has %" PRIu64,
			i, end, tokens);
	return spans_add(spans, end, false) || fault_memory(fault);
}

static bool load(
	struct spans *spans, const struct bytes *file, uint64_t tokens, struct fault *fault)
{
	uint64_t count = file->size / 8;
	uint8_t ends[8 * AT_ONCE];

	for (uint64_t i = 0; i < count; i++) {
		uint64_t left = count - i, n = left < AT_ONCE ? left : AT_ONCE;

		if (i % AT_ONCE == 0 && !bytes_read(file, 8 * i, ends, 8 * n, fault))
			return false;
		if (!take_end(spans, i, bytes_u64(ends + 8 * (i % AT_ONCE)), tokens, fault))
			return false;
	}
	if (!spans_add(spans, tokens, false)) /* the tokens after the last document */
		return fault_memory(fault);
	spans_trim(spans);
	return true;
}

/* Whether the index is the one that was described. */
static bool same_index(
	const struct bytes *file, const struct shard_facts *facts, struct fault *fault)
{
	return (file ? file->id : 0) == facts->index ||
	       fault_set(fault, FAULT_DATA, "", ".ds.index: " PHRASE_CHANGED_OPENING);
}

/* Rejects a shard with a damaged small index, even if documents are not requested. */
static bool check_small(const struct bytes *index, uint64_t tokens, struct fault *fault)
{
	struct spans spans = {0};
	bool fine = index->size > SMALL || load(&spans, index, tokens, fault);

	spans_free(&spans);
	return fine;
}

static bool datatrove_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct bytes *index;

	if (!open_side(b, ".ds.index", &index, fault))
		return false;
	bool fine = describe(b, index, hint, facts, fault) &&
		    (!index || check_small(index, facts->tokens, fault));

	bytes_close(index);
	return fine;
}

static void datatrove_close(struct shard_index *index)
{
	spans_free(&index->spans);
	free(index);
}

static struct shard_index *datatrove_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct shard_index *index = calloc(1, sizeof(*index));
	struct bytes *file = NULL;

	(void)hint;
	if (!index) {
		fault_memory(fault);
		return NULL;
	}
	if (!open_side(b, ".ds.index", &file, fault) || !same_index(file, facts, fault) ||
		(file && !(load(&index->spans, file, facts->tokens, fault) &&
				 bytes_settled(file, fault)))) {
		datatrove_close(index);
		index = NULL;
	} else {
		facts->index_bytes = sizeof(*index) + spans_bytes(&index->spans);
	}
	bytes_close(file);
	return index;
}

static uint64_t datatrove_document(
	const struct shard_index *index, uint64_t token, struct fault *fault)
{
	(void)fault;
	return spans_find(&index->spans, token).end;
}

/* A merged .ds.metadata sums up all shards of a directory; no shard has its name. */
static const struct shard_companion datatrove_companions[] = {
	{.ending = ".ds.index", .shard = ".ds", .kind = "a datatrove index"},
	{.ending = ".ds.loss", .shard = ".ds", .kind = "a datatrove loss mask"},
	{.ending = ".ds.metadata", .shard = "*.ds", .kind = "datatrove's metadata", .unread = true},
	{0},
};

static const struct shard_mask datatrove_mask = {".ds", ".ds.loss"};

const struct shard_format shard_datatrove = {
	.name = "datatrove",
	.recognise = datatrove_recognise,
	.raw = true,
	.describe = datatrove_describe,
	.companions = datatrove_companions,
	.open = datatrove_open,
	.close = datatrove_close,
	.document = datatrove_document,
	.mask = &datatrove_mask,
};
