/*
 * NumPy's .npy: a magic, a version, the length of the header, the header (the literal of a Python
 * dict with three entries), then the values. Arrays of one or two dimensions are served. Rows of a
 * window's length are samples; other rows are one stream.
 */
#include "daemon/shard/npy.h"

#include "daemon/shard/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	HEADER_MOST = 64 * 1024, /* NumPy itself accepts 10,000 */
	DIMENSIONS_MOST = 32,
};

static const char magic[] = "\x93NUMPY";

bool npy_recognise(const struct bytes *b)
{
	uint8_t head[sizeof(magic) - 1];

	return bytes_head(b, head, sizeof(head)) == sizeof(head) &&
	       memcmp(head, magic, sizeof(head)) == 0;
}

/* Also recognises a header after a damaged magic, so that it is not served as tokens. */
static bool is_npy(const struct bytes *b)
{
	static const char begin[] = "{'descr':";
	uint8_t head[12 + sizeof(begin) - 1];

	return npy_recognise(b) ||
	       (bytes_head(b, head, sizeof(head)) == sizeof(head) &&
		       (memcmp(head + 10, begin, sizeof(begin) - 1) == 0 ||
			       memcmp(head + 12, begin, sizeof(begin) - 1) == 0));
}

/* ---- the literal ---- */

/* The rest of it. */
struct text {
	const char *at, *end;
};

struct header {
	bool has_descr, has_order, has_shape;
	char descr[64]; /* "" if it is not a string */
	bool fortran;
	uint64_t shape[DIMENSIONS_MOST];
	unsigned dimensions;
};

static void skip_space(struct text *t)
{
	while (t->at < t->end && strchr(" \t\r\n\f", *t->at) && *t->at)
		t->at++;
}

static bool take(struct text *t, char c)
{
	skip_space(t);
	if (t->at == t->end || *t->at != c)
		return false;
	t->at++;
	return true;
}

/* Takes a string without escapes: no valid key or type has any. */
static bool take_string(struct text *t, char *to, size_t to_bytes)
{
	skip_space(t);
	if (t->at == t->end || (*t->at != '\'' && *t->at != '"'))
		return false;
	const char *begin = t->at + 1, *end = memchr(begin, *t->at, (size_t)(t->end - begin));
	size_t n = end ? (size_t)(end - begin) : to_bytes;

	if (n >= to_bytes || memchr(begin, '\\', n) || memchr(begin, '\n', n) ||
		memchr(begin, 0, n))
		return false;
	memcpy(to, begin, n);
	to[n] = 0;
	t->at = end + 1;
	return true;
}

static bool take_word(struct text *t, const char *word)
{
	size_t n = strlen(word);

	skip_space(t);
	if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
		return false;
	t->at += n;
	return true;
}

/* Python 2 wrote an L after some numbers. */
static bool take_number(struct text *t, uint64_t *value)
{
	skip_space(t);
	const char *begin = t->at;

	*value = 0;
	for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
		if (__builtin_mul_overflow(*value, 10, value) ||
			__builtin_add_overflow(*value, (uint64_t)(*t->at - '0'), value))
			return false;
	if (t->at == begin)
		return false;
	if (t->at < t->end && *t->at == 'L')
		t->at++;
	return true;
}

/* For messages: replaces unprintable characters. */
static const char *shown(char *text)
{
	return bytes_shown(text, strlen(text), text, strlen(text) + 1);
}

/* For messages: how the text continues. */
static const char *rest(const struct text *t, char *to, size_t to_bytes)
{
	return bytes_shown(t->at, (size_t)(t->end - t->at), to, to_bytes);
}

static bool refuse_text(
	const struct text *t, const char *field, const char *wanted, struct fault *fault)
{
	char shown[32];

	return fault_set(fault, FAULT_DATA, "", "NumPy header: %s is \"%s\"; must be %s", field,
		rest(t, shown, sizeof(shown)), wanted);
}

static bool take_descr(struct text *t, struct header *h, struct fault *fault)
{
	struct text before;

	skip_space(t);
	before = *t;
	if (t->at < t->end && (*t->at == '[' || *t->at == '('))
		return refuse_text(
			&before, "descr", "one integer type, not a structured one", fault);
	return take_string(t, h->descr, sizeof(h->descr)) ||
	       refuse_text(&before, "descr", "a type like '<u2'", fault);
}

static bool take_shape(struct text *t, struct header *h, struct fault *fault)
{
	static const char wanted[] = "a tuple of integers below 2^64";
	struct text before;
	bool comma = false;

	skip_space(t);
	before = *t;
	if (!take(t, '('))
		return refuse_text(&before, "shape", wanted, fault);
	while (!take(t, ')')) {
		if (h->dimensions == DIMENSIONS_MOST || (h->dimensions > 0 && !comma) ||
			!take_number(t, &h->shape[h->dimensions]))
			return refuse_text(&before, "shape", wanted, fault);
		h->dimensions++;
		comma = take(t, ',');
	}
	/* "(5)" is a number, not a tuple. */
	if (h->dimensions == 1 && !comma)
		return refuse_text(&before, "shape", "a tuple: (5,)", fault);
	return true;
}

static bool take_order(struct text *t, struct header *h, struct fault *fault)
{
	struct text before;

	skip_space(t);
	before = *t;
	h->fortran = take_word(t, "True");
	return h->fortran || take_word(t, "False") ||
	       refuse_text(&before, "fortran_order", "True or False", fault);
}

static bool take_entry(struct text *t, struct header *h, struct fault *fault)
{
	struct text before;
	char key[32];

	skip_space(t);
	before = *t;
	if (!take_string(t, key, sizeof(key)) || !take(t, ':'))
		return refuse_text(&before, "its key",
			"'descr', 'fortran_order' or 'shape' and a colon", fault);
	bool *seen = strcmp(key, "descr") == 0		 ? &h->has_descr
		     : strcmp(key, "fortran_order") == 0 ? &h->has_order
		     : strcmp(key, "shape") == 0	 ? &h->has_shape
							 : NULL;

	if (!seen || *seen)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: key '%s' %s; must be descr, fortran_order and shape, once "
			"each",
			shown(key), seen ? "occurs twice" : "is unknown");
	*seen = true;
	return seen == &h->has_descr   ? take_descr(t, h, fault)
	       : seen == &h->has_order ? take_order(t, h, fault)
				       : take_shape(t, h, fault);
}

static bool parse(struct text t, struct header *h, struct fault *fault)
{
	bool comma = true;

	if (!take(&t, '{'))
		return refuse_text(&t, "its beginning", "{, as of a Python dict", fault);
	while (!take(&t, '}')) {
		if (!comma)
			return refuse_text(
				&t, "the text after an entry", "a comma, or } at the end", fault);
		if (!take_entry(&t, h, fault))
			return false;
		comma = take(&t, ',');
	}
	skip_space(&t);
	if (t.at != t.end)
		return refuse_text(&t, "the text after }", "blank", fault);
	if (!h->has_descr || !h->has_order || !h->has_shape)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: %s is missing; must have descr, fortran_order and shape",
			!h->has_descr	? "descr"
			: !h->has_order ? "fortran_order"
					: "shape");
	return true;
}

/* ---- the header ---- */

/* *@data_at: offset of the values. */
static bool read_header(
	const struct bytes *b, struct header *h, uint64_t *data_at, struct fault *fault)
{
	uint8_t head[12];
	size_t n = bytes_head(b, head, sizeof(head));

	if (n < 10 || memcmp(head, magic, sizeof(magic) - 1) != 0)
		return fault_set(fault, FAULT_DATA, "",
			"is not a .npy file, or is truncated: it does not begin with \\x93NUMPY, a "
			"version and a length; set `format: flat` if it holds plain tokens");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0 || (head[6] > 1 && n < 12))
		return fault_set(fault, FAULT_DATA, "",
			"NumPy version is %d.%d; must be 1.0, 2.0 or 3.0", head[6], head[7]);
	uint64_t begin = head[6] == 1 ? 10 : 12,
		 length = head[6] == 1 ? bytes_u16(head + 8) : bytes_u32(head + 8);

	if (length > b->size - begin)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header length is %" PRIu64 "; the file has only %" PRIu64
			" bytes after it: it is truncated",
			length, b->size - begin);
	if (length > HEADER_MOST)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header length is %" PRIu64 "; must be at most %d", length,
			HEADER_MOST);
	char *text = malloc(length + 1);

	if (!text)
		return fault_memory(fault);
	*h = (struct header){0};
	*data_at = begin + length;
	bool fine = bytes_read(b, begin, text, length, fault) &&
		    parse((struct text){text, text + length}, h, fault);

	free(text);
	return fine;
}

/* ---- the values ---- */

static bool type_of(struct header *h, enum shard_type *type, struct fault *fault)
{
	static const char *const names[] = {
		[SHARD_U8] = "|u1",
		[SHARD_I8] = "|i1",
		[SHARD_U16] = "<u2",
		[SHARD_I16] = "<i2",
		[SHARD_U32] = "<u4",
		[SHARD_I32] = "<i4",
		[SHARD_U64] = "<u8",
		[SHARD_I64] = "<i8",
	};
	const char *code = h->descr;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		bool byte = strcmp(code + (*code != 0), names[i] + 1) == 0 &&
			    strchr("|<>=", *code) && *code;

		if (strcmp(code, names[i]) == 0 || (byte && names[i][0] == '|')) {
			*type = (enum shard_type)i;
			return true;
		}
	}
	return fault_set(fault, FAULT_DATA, "",
		"NumPy header: descr is '%s'%s; must be <u2, <u4, <i4, <i8, |u1, |i1, <i2 or <u8",
		shown(h->descr),
		*code == '>'	    ? ", which is big-endian"
		: strchr(code, 'O') ? ", which is pickled objects"
		: strchr(code, 'f') ? ", which is not an integer type"
				    : "");
}

bool npy_bools(const struct bytes *b, uint64_t n, uint64_t *data_at, struct fault *fault)
{
	struct header h;

	if (!read_header(b, &h, data_at, fault))
		return false;
	if (strcmp(h.descr, "|b1") != 0 && strcmp(h.descr, "?") != 0)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: descr is '%s'; must be |b1 (bool)", shown(h.descr));
	if (h.dimensions != 1 || h.shape[0] != n || b->size - *data_at != n)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: shape is (%" PRIu64
			", …) of %u dimensions, and the file has %" PRIu64
			" bytes after the header; must be (%" PRIu64
			",), one for each token of the shard",
			h.dimensions ? h.shape[0] : 0, h.dimensions, b->size - *data_at, n);
	return true;
}

static bool npy_scan(const struct bytes *b, const struct bytes *index,
	const struct shard_hint *hint, struct shard_facts *facts, struct map *map,
	struct fault *fault)
{
	struct header h;
	uint64_t bytes;

	(void)index, (void)hint, (void)map;
	if (!read_header(b, &h, &facts->data_at, fault) || !type_of(&h, &facts->type, fault))
		return false;
	if (h.dimensions < 1 || h.dimensions > 2)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: shape has %u dimensions; must have 1, or 2 (rows of tokens)",
			h.dimensions);
	if (h.fortran && h.dimensions > 1)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: fortran_order is True, so rows are not contiguous; write it "
			"in C order");
	facts->tokens = h.shape[0];
	if ((h.dimensions == 2 && __builtin_mul_overflow(h.shape[0], h.shape[1], &facts->tokens)) ||
		__builtin_mul_overflow(facts->tokens, shard_type_bytes(facts->type), &bytes) ||
		bytes != b->size - facts->data_at)
		return fault_set(fault, FAULT_DATA, "",
			"NumPy header: shape is (%" PRIu64 ", %" PRIu64
			") of %s; the file has %" PRIu64 " bytes after the header",
			h.shape[0], h.dimensions == 2 ? h.shape[1] : 1,
			shard_type_name(facts->type), b->size - facts->data_at);
	if (h.dimensions == 2)
		facts->row_tokens = h.shape[1];
	return true;
}

const struct shard_format shard_npy = {
	.name = "npy",
	.recognise = is_npy,
	.scan = npy_scan,
};
