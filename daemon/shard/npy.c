/*
 * NumPy's .npy: a magic, a version, the length of the header, the header (the literal of a Python
 * dict with three entries), then the values. Arrays of one or two dimensions are served. Rows of a
 * window's length are samples; other rows are one stream.
 *
 * Only the values of the three entries are looked at. They must agree with the size of the file.
 */
#include "daemon/shard/format.h"

#include <errno.h>
#include <inttypes.h>
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

struct header {
	char descr[64]; /* printable; "" if it is not a string */
	bool fortran;
	uint64_t shape[2];
	unsigned dimensions; /* may be more than those in shape */
	uint64_t data_at;    /* offset of the values */
};

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

static void take_descr(const char *value, struct header *h)
{
	size_t n = strcspn(value + (*value != 0), "'\"");

	if ((*value == '\'' || *value == '"') && value[n + 1] == *value)
		bytes_shown(value + 1, n, h->descr, sizeof(h->descr));
}

/* A tuple of numbers: "()", "(5,)", "(3, 4)". Python 2 wrote an L after some of them. */
static bool take_shape(const char *at, struct header *h)
{
	bool comma = *at == '('; /* or the parenthesis */

	for (at += comma; comma; at += comma) {
		char *end;

		at += strspn(at, " ");
		if (*at == ')')
			return true;
		errno = 0;
		uint64_t length = strtoull(at, &end, 10);

		if (*at < '0' || *at > '9' || errno != 0)
			return false;
		if (h->dimensions < 2)
			h->shape[h->dimensions] = length;
		h->dimensions++;
		at = end + (*end == 'L');
		at += strspn(at, " ");
		comma = *at == ',';
	}
	return *at == ')' && h->dimensions > 1; /* (5) is a number */
}

static bool parse(const char *text, struct header *h, struct fault *fault)
{
	const char *descr = value_of(text, "descr", fault);
	const char *order = descr ? value_of(text, "fortran_order", fault) : NULL;
	const char *shape = order ? value_of(text, "shape", fault) : NULL;
	char shown[32];

	if (!shape)
		return false;
	take_descr(descr, h);
	h->fortran = strncmp(order, "True", 4) == 0;
	if (!h->fortran && strncmp(order, "False", 5) != 0)
		return refuse(fault, "fortran_order must be True or False");
	return take_shape(shape, h) ||
	       refuse(fault, "shape is \"%s\"; must be a tuple of integers below 2^64, as (5,)",
		       bytes_shown(shape, strlen(shape), shown, sizeof(shown)));
}

static bool read_header(const struct bytes *b, struct header *h, struct fault *fault)
{
	const uint8_t *head = b->head;

	*h = (struct header){.fortran = false};
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
	bool fine = text && parse(text, h, fault);

	free(text);
	h->data_at = begin + length;
	return fine;
}

/* ---- the values ---- */

/* The type of "<u2", "|i1", …: the byte order, u or i, and the number of bytes. */
static bool type_of(const struct header *h, enum shard_type *type, struct fault *fault)
{
	const char *code = h->descr;
	const char *size = strlen(code) == 3 ? strchr("1 2 4 8", code[2]) : NULL;

	if (size && *size != ' ' && (code[1] == 'u' || code[1] == 'i') &&
		(code[0] == '<' || (code[2] == '1' && strchr("|>=", code[0])))) {
		*type = (enum shard_type)(
			2 * __builtin_ctz((unsigned)(code[2] - '0')) + (code[1] == 'i'));
		return true;
	}
	return refuse(fault, "descr is '%s'%s; must be <u2, <u4, <i4, <i8, |u1, |i1, <i2 or <u8",
		code,
		*code == '>'	    ? ", which is big-endian"
		: strchr(code, 'O') ? ", which is pickled objects"
		: strchr(code, 'f') ? ", which is not an integer type"
				    : "");
}

static bool npy_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct header h;
	uint64_t bytes;

	if (!read_header(b, &h, s->fault) || !type_of(&h, &facts->type, s->fault))
		return false;
	if (h.dimensions < 1 || h.dimensions > 2)
		return refuse(s->fault,
			"shape has %u dimensions; must have 1, or 2 (rows of tokens)",
			h.dimensions);
	if (h.fortran && h.dimensions > 1)
		return refuse(s->fault,
			"fortran_order is True, so rows are not contiguous; write it in C order");
	const uint64_t columns = h.dimensions == 2 ? h.shape[1] : 1;

	facts->data_at = h.data_at;
	facts->row_tokens = h.shape[1]; /* 0 in one dimension */
	return (!__builtin_mul_overflow(h.shape[0], columns, &facts->tokens) &&
		       !__builtin_mul_overflow(
			       facts->tokens, shard_type_bytes(facts->type), &bytes) &&
		       bytes == b->size - facts->data_at) ||
	       refuse(s->fault,
		       "shape is (%" PRIu64 ", %" PRIu64 ") of %s; the file has %" PRIu64
		       " bytes after the header",
		       h.shape[0], columns, shard_type_name(facts->type), b->size - facts->data_at);
}

const struct shard_format shard_npy = {
	.name = "npy",
	.recognise = is_npy,
	.scan = npy_scan,
};
