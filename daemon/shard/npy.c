/*
 * NumPy's .npy: a magic, a version, the length of the header, the header (the literal of a Python
 * dict with three entries), then the values. Arrays of one or two dimensions are served. Rows of a
 * window's length are samples; other rows are one stream.
 *
 * Only the values of the three entries are looked at. They must agree with the size of the file.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 64 * 1024 /* NumPy itself accepts 10,000 */ };

static const char magic[] = "\x93NUMPY";

static bool has_magic(const struct bytes *b)
{
	return memcmp(b->head, magic, sizeof(magic) - 1) == 0;
}

/* Also recognises a header after a damaged magic, so that it is not served as tokens. */
static bool is_npy(const struct bytes *b)
{
	static const char begin[] = "{'descr':";
	return has_magic(b) || memcmp(b->head + 10, begin, sizeof(begin) - 1) == 0 ||
	       memcmp(b->head + 12, begin, sizeof(begin) - 1) == 0;
}

/* ---- the header ---- */

#define refuse(fault, ...) fault_data(fault, "NumPy header: " __VA_ARGS__)

/* The value of @key, which must be there once. NULL: @fault. */
static const char *value_of(const char *text, const char *key, struct fault *fault)
{
	const char *at = strstr(text, key);

	if (at && !strstr(at + 1, key)) {
		at += strlen(key);
		at += *at == '\'' || *at == '"';
		at += strspn(at, " ");
		if (*at == ':')
			return at + 1 + strspn(at + 1, " ");
	}
	refuse(fault, "%s is missing or there twice; must have descr, fortran_order and shape",
		key);
	return NULL;
}

/* "'<u2'", "'|i1'", …: the byte order, u or i, and the number of bytes. */
static bool take_type(const char *text, enum shard_type *type, struct fault *fault)
{
	char order = 0, kind = 0;
	unsigned bytes = 0;
	int end = 0, n = (int)strcspn(text, ",");

	sscanf(text, "%*['\"]%c%c%1u%*['\"]%n", &order, &kind, &bytes, &end);
	if (end > 0 && __builtin_popcount(bytes) == 1 && (kind == 'u' || kind == 'i') &&
		(order == '<' || (bytes == 1 && strchr("|>=", order)))) {
		*type = (enum shard_type)(2 * __builtin_ctz(bytes) + (kind == 'i'));
		return true;
	}
	return refuse(fault,
		"descr is %.*s, which is %s; must be <u2, <u4, <i4, <i8, |u1, |i1, <i2 "
		"or <u8",
		n < 32 ? n : 32, text, order == '>' ? "big-endian" : "not an integer type");
}

/* "(5,)" or "(3, 4)". A number below 0 becomes one that does not fit the size of the file.
 * *@columns: 0: it has one dimension. */
static bool take_shape(const char *text, uint64_t *rows, uint64_t *columns, struct fault *fault)
{
	int end = 0;

	if (sscanf(text, "(%" SCNu64 " , %" SCNu64 " %n", rows, columns, &end) == 2 &&
		text[end] == ')') {
		*rows *= *columns > 0; /* (5, 0) has no tokens */
		return true;
	}
	*columns = 0;
	return (sscanf(text, "(%" SCNu64 " , %n", rows, &end) == 1 && text[end] == ')') ||
	       refuse(fault, "shape is %.*s; must be one dimension, as (5,), or two, as (3, 4)",
		       (int)strcspn(text, ")") + 1, text);
}

static bool parse(const char *text, struct shard_facts *facts, uint64_t *rows, struct fault *fault)
{
	const char *descr = value_of(text, "descr", fault);
	const char *order = descr ? value_of(text, "fortran_order", fault) : NULL;
	const char *shape = order ? value_of(text, "shape", fault) : NULL;

	if (!shape || !take_type(descr, &facts->type, fault) ||
		!take_shape(shape, rows, &facts->row_tokens, fault))
		return false;
	return strncmp(order, "False", 5) == 0 ||
	       (strncmp(order, "True", 4) == 0 && facts->row_tokens == 0) ||
	       refuse(fault,
		       "fortran_order is %.4s; must be False, otherwise rows are not contiguous; "
		       "write it in C order",
		       order);
}

static bool read_header(
	const struct bytes *b, struct shard_facts *facts, uint64_t *rows, struct fault *fault)
{
	const uint8_t *head = b->head;

	if (b->size < 12 || !has_magic(b))
		return fault_data(fault,
			"is not a .npy file, or is truncated: it does not begin with \\x93NUMPY, a "
			"version and a length; set `format: flat` if it holds plain tokens");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0)
		return fault_data(
			fault, "NumPy version is %d.%d; must be 1.0, 2.0 or 3.0", head[6], head[7]);
	uint64_t begin = head[6] == 1 ? 10 : 12,
		 length = head[6] == 1 ? bytes_u16(head + 8) : bytes_u32(head + 8);

	if (!bytes_check(fault, length, 0,
		    b->size - begin < HEADER_MOST ? b->size - begin : HEADER_MOST,
		    "NumPy header length"))
		return false;
	char *text = bytes_load(b, begin, length, fault);

	for (char *at = text; at && (at = strchr(at, 'L'));)
		*at = ' '; /* of Python 2's long integers: (5L,) */
	bool fine = text && parse(text, facts, rows, fault);

	free(text);
	facts->data_at = begin + length;
	return fine;
}

static bool npy_scan(const struct shard_scan *s)
{
	struct shard_facts *facts = s->facts;
	uint64_t rows, bytes;

	if (!read_header(s->b, facts, &rows, s->fault))
		return false;
	uint64_t left = s->b->size - facts->data_at,
		 columns = facts->row_tokens > 0 ? facts->row_tokens : 1;

	return (!__builtin_mul_overflow(rows, columns, &facts->tokens) &&
		       !__builtin_mul_overflow(
			       facts->tokens, shard_type_bytes(facts->type), &bytes) &&
		       bytes == left) ||
	       refuse(s->fault,
		       "shape is (%" PRIu64 ", %" PRIu64 ") of %s; the file has %" PRIu64
		       " bytes after the header: it is damaged, or truncated",
		       rows, columns, shard_type_name(facts->type), left);
}

const struct shard_format shard_npy = {
	.name = "npy",
	.recognise = is_npy,
	.scan = npy_scan,
};
