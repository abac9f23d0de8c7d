#include "daemon/shard/mds_samples.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
	DIMENSIONS_MOST = 63,
	TABLE_AT_ONCE = 16 * 1024,
	COUNT_PROOFS = 16, /* samples whose size is compared with their shape */
};

/* A sample, with its first bytes. */
struct sample {
	uint32_t number;
	uint64_t begin, end; /* in the file */
	uint64_t tokens_at, tokens;
	enum shard_type type;
	size_t lead;
	uint8_t bytes[MDS_LEAD_BYTES];
};

/*
 * Returns bytes [at, at + n) of the file: from s->bytes if it has them, otherwise read into @to.
 * NULL: @fault.
 */
static const uint8_t *part(const struct bytes *b, const struct sample *s, uint64_t at, size_t n,
	uint8_t *to, struct fault *fault)
{

	if (at + n <= s->begin + s->lead)
		return s->bytes + (at - s->begin);
	return bytes_read(b, at, to, n, fault) ? to : NULL;
}

/* Finds the column of tokens and its size. The lengths must add up to the size of the sample. */
static bool find_column(const struct bytes *b, const struct mds_layout *l, struct sample *s,
	uint64_t *size, struct fault *fault)
{
	uint8_t lengths[4 * MDS_COLUMNS_MOST];
	uint64_t bytes = s->end - s->begin, head = 4 * (uint64_t)l->variable, sum = head + l->fixed;
	const uint8_t *length = lengths;

	if (head <= bytes)
		length = part(b, s, s->begin, head, lengths, fault);
	if (!length)
		return false;
	s->tokens_at = s->begin + head;
	for (unsigned i = 0; head <= bytes && i < l->columns; i++) {
		uint64_t column = l->size[i] ? l->size[i] : bytes_u32(length);

		sum += l->size[i] ? 0 : column;
		length += l->size[i] ? 0 : 4;
		s->tokens_at += i < l->column ? column : 0;
		*size = i == l->column ? column : *size;
	}
	return sum == bytes || fault_set(fault, FAULT_DATA, "",
				       "sample %" PRIu32 ": its lengths and columns take %" PRIu64
				       " bytes; its offsets span %" PRIu64,
				       s->number, sum, bytes);
}

static bool take_type(const uint8_t *value, struct sample *s, struct fault *fault)
{
	return mds_type_of(*value, &s->type) ||
	       fault_set(fault, FAULT_DATA, "",
		       "sample %" PRIu32 ": type is %u%s; must be 8, 9, 16, 17, 32, 33, 64 or 65",
		       s->number, *value,
		       *value == 18 || *value == 34 || *value == 66 ? ", a floating-point type"
								    : "");
}

/* Takes the type and the shape at the beginning of a value of @size bytes. *@n: their length. */
static bool take_array(const struct bytes *b, const struct mds_layout *l, struct sample *s,
	uint64_t size, size_t *n, uint64_t *count, struct fault *fault)
{
	uint8_t more[2 + 8 * DIMENSIONS_MOST];
	size_t head = (size_t)!l->has_type + 1;

	if (size < head)
		return fault_set(fault, FAULT_DATA, "",
			"sample %" PRIu32 ": column `%s` is %" PRIu64
			" bytes long; its shape alone takes %zu",
			s->number, l->name, size, head);
	const uint8_t *value = part(b, s, s->tokens_at, head, more, fault);

	if (!value || (!l->has_type && !take_type(value, s, fault)))
		return false;
	unsigned dimensions = value[head - 1] >> 2, width = 1u << (value[head - 1] & 3);

	*n = head + (size_t)dimensions * width;
	if (dimensions == 0 || *n > size)
		return fault_set(fault, FAULT_DATA, "",
			"sample %" PRIu32 ": shape has %u dimensions of %u bytes; must have 1 to "
			"%d, and column `%s` is %" PRIu64 " bytes long",
			s->number, dimensions, width, DIMENSIONS_MOST, l->name, size);
	value = part(b, s, s->tokens_at, *n, more, fault);
	if (!value)
		return false;
	*count = 1;
	for (const uint8_t *at = value + head; at < value + *n; at += width) {
		uint64_t dimension = width == 1	  ? at[0]
				     : width == 2 ? bytes_u16(at)
				     : width == 4 ? bytes_u32(at)
						  : bytes_u64(at);

		if (__builtin_mul_overflow(*count, dimension, count))
			return fault_set(fault, FAULT_DATA, "",
				"sample %" PRIu32
				": shape makes over 2^64 tokens; column `%s` is %" PRIu64
				" bytes long",
				s->number, l->name, size);
	}
	return true;
}

/*
 * Reads sample @number, bytes [begin, end) of the file: the offset, number and type of its tokens.
 */
static bool look(const struct bytes *b, const struct mds_layout *l, struct sample *s,
	uint32_t number, uint64_t begin, uint64_t end, struct fault *fault)
{
	uint64_t size = 0, count = l->count;
	size_t n = 0;

	s->number = number;
	s->begin = begin;
	s->end = end;
	s->type = l->type;
	s->lead = end - begin < MDS_LEAD_BYTES ? (size_t)(end - begin) : MDS_LEAD_BYTES;
	if (!bytes_read(b, begin, s->bytes, s->lead, fault) ||
		!find_column(b, l, s, &size, fault) ||
		(!l->has_shape && !take_array(b, l, s, size, &n, &count, fault)))
		return false;
	uint64_t width = shard_type_bytes(s->type), bytes;

	s->tokens_at += n;
	if (l->has_shape && l->count == 0) {
		count = size / width;
		if (size % width != 0)
			return fault_set(fault, FAULT_DATA, "",
				"sample %" PRIu32 ": column `%s` is %" PRIu64
				" bytes long, not a multiple of %" PRIu64
				", the token size: it is truncated, or dtype is wrong",
				number, l->name, size, width);
	}
	if (__builtin_mul_overflow(count, width, &bytes) || bytes != size - n)
		return fault_set(fault, FAULT_DATA, "",
			"sample %" PRIu32 ": shape makes %" PRIu64 " tokens of %" PRIu64
			" bytes; column `%s` has %" PRIu64 " bytes for them",
			number, count, width, l->name, size - n);
	s->tokens = count;
	return true;
}

static bool same_type(const struct sample *s, enum shard_type type, struct fault *fault)
{
	return s->type == type ||
	       fault_set(fault, FAULT_DATA, "",
		       "sample %" PRIu32
		       " has tokens of %s, sample 0 of %s; all must have the same type",
		       s->number, shard_type_name(s->type), shard_type_name(type));
}

/* Whether a sample has the same type and number of tokens as the first. */
static bool alike(
	const struct sample *s, uint64_t tokens, enum shard_type type, struct fault *fault)
{
	if (!same_type(s, type, fault))
		return false;
	return s->tokens == tokens ||
	       fault_set(fault, FAULT_DATA, "",
		       "sample %" PRIu32 " has %" PRIu64 " tokens, sample 0 has %" PRIu64
		       "; all must have the same number: a window is a sample",
		       s->number, s->tokens, tokens);
}

static void bounds(const struct shard_index *x, uint32_t i, uint64_t *begin, uint64_t *end)
{
	*begin = x->offsets ? x->offsets[i] : x->first + i * x->stride;
	*end = x->offsets ? x->offsets[i + 1] : *begin + x->stride;
}

bool mds_read_table(struct shard_index *x, struct fault *fault)
{
	uint64_t count = (uint64_t)x->samples + 1;
	uint8_t some[TABLE_AT_ONCE];
	uint32_t last = (uint32_t)x->first;

	for (uint64_t i = 0; i < count; i++) {
		uint64_t in = i % (sizeof(some) / 4), left = count - i;

		if (in == 0 && !bytes_read(x->b, 4 + 4 * i, some,
				       4 * left < sizeof(some) ? 4 * left : sizeof(some), fault))
			return false;
		uint32_t offset = bytes_u32(some + 4 * in);

		if (offset < last || offset > x->b->size)
			return fault_set(fault, FAULT_DATA, "",
				"offset %" PRIu64 " is %" PRIu32 "; must be %" PRIu32 " to %" PRIu64
				": offsets ascend and end with the file",
				i, offset, last, x->b->size);
		if (!x->offsets && offset != x->first + i * x->stride) {
			x->offsets = malloc(count * sizeof(*x->offsets));
			if (!x->offsets)
				return fault_memory(fault);
			for (uint64_t j = 0; j < i; j++)
				x->offsets[j] = (uint32_t)(x->first + j * x->stride);
		}
		if (x->offsets)
			x->offsets[i] = offset;
		last = offset;
	}
	return true;
}

bool mds_look_at_all(struct shard_index *x, uint64_t step, struct fault *fault)
{
	bool even = true;

	for (uint64_t i = 0; i < x->samples; i += step) {
		struct sample s;
		uint64_t begin, end;

		bounds(x, (uint32_t)i, &begin, &end);
		if (!look(x->b, &x->layout, &s, (uint32_t)i, begin, end, fault) ||
			!same_type(&s, x->type, fault))
			return false;
		if (s.tokens != x->sample_tokens) {
			x->joined = true;
			x->differs = (uint32_t)i;
			return true;
		}
		even = even && s.tokens_at - begin == x->tokens_from;
	}
	x->even = x->even || (even && step == 1);
	return true;
}

bool mds_refuse_lengths(struct shard_index *x, struct fault *fault)
{
	struct sample s;
	uint64_t begin, end;

	bounds(x, x->differs, &begin, &end);
	return look(x->b, &x->layout, &s, x->differs, begin, end, fault) &&
	       alike(&s, x->sample_tokens, x->type, fault) && fault_memory(fault);
}

/*
 * The number of tokens of a sample of so many bytes, if its size tells it: all other columns are
 * fixed, and the shape has one dimension of the least width. 0: look at the sample.
 */
static uint64_t tokens_by_size(const struct shard_index *x, uint64_t bytes)
{
	const struct mds_layout *l = &x->layout;
	uint64_t width = shard_type_bytes(x->type), other = 4 + l->fixed;

	if (l->variable != 1 || l->size[l->column] > 0 || bytes < other || l->count > 0)
		return 0;
	bytes -= other;
	if (l->has_shape)
		return bytes % width == 0 ? bytes / width : 0;
	for (unsigned dimension = 1; dimension <= 4; dimension *= 2) {
		uint64_t head = (uint64_t)!l->has_type + 1 + dimension, n;

		if (bytes < head || (bytes - head) % width != 0)
			continue;
		n = (bytes - head) / width;
		if (n >> (8 * dimension) == 0 && (dimension == 1 || n >> (4 * dimension) > 0))
			return n;
	}
	return 0;
}

bool mds_count_tokens(const struct shard_index *x, uint64_t *tokens, struct fault *fault)
{
	uint64_t step = x->samples / COUNT_PROOFS + 1;
	bool by_size = true;

	*tokens = 0;
	for (uint64_t i = 0; i < x->samples; i++) {
		uint64_t begin, end, n = 0;
		struct sample s;

		bounds(x, (uint32_t)i, &begin, &end);
		if (by_size)
			n = tokens_by_size(x, end - begin);
		if (n == 0 || i % step == 0) {
			if (!look(x->b, &x->layout, &s, (uint32_t)i, begin, end, fault) ||
				!same_type(&s, x->type, fault))
				return false;
			if (n > 0 && n != s.tokens) { /* sizes do not tell: look at all */
				by_size = false;
				*tokens = 0;
				i = UINT64_MAX; /* begin again */
				continue;
			}
			n = s.tokens;
		}
		*tokens += n;
	}
	return *tokens > 0 ||
	       fault_set(fault, FAULT_DATA, "", "column `%s` has no tokens", x->layout.name);
}

bool mds_join_by_size(struct shard_index *x, uint64_t tokens)
{
	uint32_t i = 0;

	if (x->layout.fixed > 0 || !pieces_new(&x->pieces, x->samples))
		return false;
	for (; i < x->samples; i++) {
		uint64_t begin, end, n;

		bounds(x, i, &begin, &end);
		n = tokens_by_size(x, end - begin);
		/* Nothing follows the tokens. */
		if (n == 0 || !pieces_add(&x->pieces, n, end - n * shard_type_bytes(x->type)))
			break;
	}
	x->joined =
		i == x->samples && pieces_done(&x->pieces) && pieces_tokens(&x->pieces) == tokens;
	if (!x->joined) {
		pieces_free(&x->pieces);
		x->pieces = (struct pieces){0};
	}
	return x->joined;
}

bool mds_join(struct shard_index *x, struct fault *fault)
{
	x->joined = true;
	if (!pieces_new(&x->pieces, x->samples))
		return fault_memory(fault);
	for (uint32_t i = 0; i < x->samples; i++) {
		struct sample s;
		uint64_t begin, end;

		bounds(x, i, &begin, &end);
		if (!look(x->b, &x->layout, &s, i, begin, end, fault) ||
			!same_type(&s, x->type, fault))
			return false;
		if (!pieces_add(&x->pieces, s.tokens, s.tokens_at))
			return fault_memory(fault);
	}
	return pieces_done(&x->pieces) || fault_memory(fault);
}

void mds_index_free(struct shard_index *x)
{
	pieces_free(&x->pieces);
	free(x->offsets);
	free(x);
}

struct shard_index *mds_index_new(
	const struct bytes *b, const struct mds_front *f, struct fault *fault)
{
	struct shard_index *x = calloc(1, sizeof(*x));
	struct sample s;

	if (!x) {
		fault_memory(fault);
		return NULL;
	}
	x->b = b;
	x->layout = f->layout;
	x->samples = f->samples;
	x->first = f->first;
	x->stride = f->second - f->first;
	if (!look(b, &f->layout, &s, 0, f->first, f->second, fault)) {
		free(x);
		return NULL;
	}
	x->sample_tokens = s.tokens;
	x->type = s.type;
	x->tokens_from = s.tokens_at - f->first;
	memcpy(x->lead, s.bytes, s.lead);
	x->even = f->layout.variable == 0 && f->layout.has_shape; /* all columns are fixed */
	return x;
}

/* Reads and checks sample @i. *@tokens_at: the offset of its tokens. */
static bool look_at(
	const struct shard_index *x, uint32_t i, uint64_t *tokens_at, struct fault *fault)
{
	struct sample s;
	uint64_t from, end;

	bounds(x, i, &from, &end);
	if (!look(x->b, &x->layout, &s, i, from, end, fault) ||
		!alike(&s, x->sample_tokens, x->type, fault))
		return false;
	*tokens_at = s.tokens_at;
	return true;
}

uint64_t mds_extent(
	const struct shard_index *x, uint64_t token, uint64_t *byte, struct fault *fault)
{
	if (x->joined)
		return pieces_extent(&x->pieces, shard_type_bytes(x->type), token, byte);
	uint32_t i = (uint32_t)(token / x->sample_tokens);
	uint64_t in = token % x->sample_tokens, end;

	if (x->even || (x->lead_bytes > 0 && in == 0)) {
		bounds(x, i, byte, &end);
		*byte += x->tokens_from;
	} else if (!look_at(x, i, byte, fault)) {
		return 0;
	}
	*byte += in * shard_type_bytes(x->type);
	return x->sample_tokens - in;
}

/* Accepts the first sample's lengths and shape, or other ones that are valid. */
bool mds_check(
	const struct shard_index *x, uint64_t token, const uint8_t *lead, struct fault *fault)
{
	uint32_t i = (uint32_t)(token / x->sample_tokens);
	uint64_t at, begin, end;

	if (memcmp(lead, x->lead, x->lead_bytes) == 0)
		return true;
	bounds(x, i, &begin, &end);
	return look_at(x, i, &at, fault) &&
	       (at == begin + x->tokens_from ||
		       fault_set(fault, FAULT_DATA, "",
			       "sample %" PRIu32 ": its tokens begin at byte %" PRIu64
			       "; must be %" PRIu64,
			       i, at, begin + x->tokens_from));
}
