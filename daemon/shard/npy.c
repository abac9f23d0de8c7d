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

/* ---- the header ---- */

struct header {
	char descr[64]; /* printable */
	bool fortran;
	uint64_t shape[2];
	unsigned dimensions; /* 1 or 2 */
	uint64_t data_at;    /* offset of the values */
};

/* A tuple of one or two numbers: "(5,)", "(3, 4)". */
static bool take_shape(const char *text, struct header *h)
{
	int end = 0;

	h->dimensions = 1;
	sscanf(text, "(%" SCNu64 ",)%n", &h->shape[0], &end);
	if (end == 0) {
		h->dimensions = 2;
		sscanf(text, "(%" SCNu64 ", %" SCNu64 ")%n", &h->shape[0], &h->shape[1], &end);
	}
	return end > 0 && !memchr(text, '-', (size_t)end);
}

/* NumPy, and all who write its format, write the entries in this order. */
static bool parse(const char *text, struct header *h, struct fault *fault)
{
	char order[8] = "", shown[80];
	int at = 0;

	sscanf(text, " { 'descr' : '%63[^']' , 'fortran_order' : %5[A-Za-z] , 'shape' : %n",
		h->descr, order, &at);
	bytes_shown(h->descr, strlen(h->descr), h->descr, sizeof(h->descr));
	h->fortran = strcmp(order, "True") == 0;
	if (at == 0 || (!h->fortran && strcmp(order, "False") != 0))
		return fault_data(fault,
			"NumPy header: is \"%s\"; must be descr, fortran_order and shape",
			bytes_shown(text, strlen(text), shown, sizeof(shown)));
	return take_shape(text + at, h) ||
	       fault_data(fault,
		       "NumPy header: shape is \"%s\"; must be of 1 or 2 dimensions, as (5,)",
		       bytes_shown(text + at, strcspn(text + at, "}"), shown, sizeof(shown)));
}

static bool read_header(const struct bytes *b, struct header *h, struct fault *fault)
{
	uint8_t head[12];
	size_t n = bytes_head(b, head, sizeof(head));

	*h = (struct header){.fortran = false};
	if (n < 10 || memcmp(head, magic, sizeof(magic) - 1) != 0)
		return fault_data(fault,
			"is not a .npy file, or is truncated: it does not begin with \\x93NUMPY, a "
			"version and a length; set `format: flat` if it holds plain tokens");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0 || (head[6] > 1 && n < 12))
		return fault_data(
			fault, "NumPy version is %d.%d; must be 1.0, 2.0 or 3.0", head[6], head[7]);
	uint64_t begin = head[6] == 1 ? 10 : 12,
		 length = head[6] == 1 ? bytes_u16(head + 8) : bytes_u32(head + 8);

	if (length > b->size - begin)
		return fault_data(fault,
			"NumPy header length is %" PRIu64 "; the file has only %" PRIu64
			" bytes after it: it is truncated",
			length, b->size - begin);
	if (!bytes_check("NumPy header length", (int64_t)length, 0, HEADER_MOST, fault))
		return false;
	char *text = calloc(1, length + 1);
	bool fine = text ? bytes_read(b, begin, text, length, fault) && parse(text, h, fault)
			 : fault_memory(fault);

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
	return fault_data(fault,
		"NumPy header: descr is '%s'%s; must be <u2, <u4, <i4, <i8, |u1, |i1, <i2 or <u8",
		code,
		*code == '>'	    ? ", which is big-endian"
		: strchr(code, 'O') ? ", which is pickled objects"
		: strchr(code, 'f') ? ", which is not an integer type"
				    : "");
}

bool npy_bools(const struct bytes *b, uint64_t n, uint64_t *data_at, struct fault *fault)
{
	struct header h;

	if (!read_header(b, &h, fault))
		return false;
	*data_at = h.data_at;
	if (strcmp(h.descr, "|b1") != 0 && strcmp(h.descr, "?") != 0)
		return fault_data(
			fault, "NumPy header: descr is '%s'; must be |b1 (bool)", h.descr);
	if (h.dimensions != 1 || h.shape[0] != n || b->size - h.data_at != n)
		return fault_data(fault,
			"NumPy header: shape is (%" PRIu64
			", …) of %u dimensions, and the file has %" PRIu64
			" bytes after the header; must be (%" PRIu64
			",), one for each token of the shard",
			h.shape[0], h.dimensions, b->size - h.data_at, n);
	return true;
}

static bool npy_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct header h;
	uint64_t bytes;

	if (!read_header(b, &h, s->fault) || !type_of(&h, &facts->type, s->fault))
		return false;
	if (h.fortran && h.dimensions > 1)
		return fault_data(s->fault,
			"NumPy header: fortran_order is True, so rows are not contiguous; write it "
			"in C order");
	facts->data_at = h.data_at;
	facts->row_tokens = h.shape[1]; /* 0 in one dimension */
	if (__builtin_mul_overflow(
		    h.shape[0], h.dimensions == 2 ? h.shape[1] : 1, &facts->tokens) ||
		__builtin_mul_overflow(facts->tokens, shard_type_bytes(facts->type), &bytes) ||
		bytes != b->size - facts->data_at)
		return fault_data(s->fault,
			"NumPy header: shape is (%" PRIu64 ", %" PRIu64
			") of %s; the file has %" PRIu64 " bytes after the header",
			h.shape[0], h.dimensions == 2 ? h.shape[1] : 1,
			shard_type_name(facts->type), b->size - facts->data_at);
	return true;
}

const struct shard_format shard_npy = {
	.name = "npy",
	.recognise = is_npy,
	.scan = npy_scan,
};
