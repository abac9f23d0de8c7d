/*
 * Megatron's X.bin and X.idx. The .bin is tokens without a header. The .idx has their type, and the
 * length and byte offset of each sequence. Megatron trains on each sequence as a document, so a
 * sequence is a document here. The documents in the index, runs of sequences, are ignored.
 *
 * Sequences usually follow one another in the .bin. Otherwise the tokens are those of the
 * sequences, in the order of the index. Bytes outside sequences are not served.
 *
 * The .idx has a header, with the numbers of sequences (N) and document boundaries (D). Three
 * arrays follow without gaps: lengths i32[N], pointers i64[N], documents i64[D]. Multimodal files
 * also have modes i8[N].
 */
#include "daemon/shard/format.h"
#include "proto/order.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { VERSION_AT = 9, TYPE_AT = 17, SEQUENCES_AT = 18, DOCUMENTS_AT = 26, HEADER_BYTES = 34 };

/* A shard whose index is read. */
struct megatron {
	const struct shard_scan *s;
	enum shard_type type;
	uint32_t width;
	uint64_t sequences, documents; /* lengths of the arrays */
	bool modes;
	uint64_t begin, end; /* byte range of the last sequence that is not empty */
	uint64_t first;	     /* offset of the first sequence */
	uint64_t ends;	     /* sum of hashes: where sequences begin less where they end */
};

static const char magic[9] = "MMIDIDX\0"; /* and the 0 that ends the string */

/* By the number in the header. 6 and 7 are floating-point types. */
static const int8_t types[] = {
	-1, SHARD_U8, SHARD_I8, SHARD_I16, SHARD_I32, SHARD_I64, -1, -1, SHARD_U16};

#define refuse(m, ...) fault_data((m)->s->fault, ".idx: " __VA_ARGS__)
#define check(m, value, least, most, ...)                                                          \
	bytes_check((m)->s->fault, value, least, most, ".idx: " __VA_ARGS__)

/* The arrays must fill the file exactly, otherwise neither length can be trusted. */
static bool check_counts(struct megatron *m)
{
	unsigned __int128 rest = m->s->index->size - HEADER_BYTES,
			  arrays = (unsigned __int128)m->sequences * 12;

	arrays += (unsigned __int128)m->documents * 8;
	m->modes = rest != arrays;
	return (m->documents > 0 && (rest == arrays || rest == arrays + m->sequences)) ||
	       refuse(m,
		       "sequence count is %" PRIu64 " and document boundary count is %" PRIu64
		       ", which do not fill its %" PRIu64 " bytes",
		       m->sequences, m->documents, m->s->index->size);
}

static bool read_header(struct megatron *m)
{
	uint8_t head[HEADER_BYTES];

	if (m->s->index->size < sizeof(head))
		return refuse(m, "is truncated: the header alone has %zu bytes", sizeof(head));
	if (!bytes_read(m->s->index, 0, head, sizeof(head), m->s->fault))
		return false;
	if (memcmp(head, magic, sizeof(magic)) != 0)
		return refuse(m,
			"magic is '%.9s'; must be MMIDIDX: it is damaged, or it is not a Megatron "
			"index; then move it away, and set `format: flat`",
			(const char *)head);
	unsigned type = head[TYPE_AT];

	if (!check(m, bytes_u64(head + VERSION_AT), 1, 1, "version"))
		return false;
	if (type >= sizeof(types) || types[type] < 0)
		return refuse(m,
			"dtype is %u, which is not an integer type; must be 1 to 5, or 8 (u16)",
			type);
	m->type = (enum shard_type)types[type];
	m->width = shard_type_bytes(m->type);
	m->sequences = bytes_u64(head + SEQUENCES_AT);
	m->documents = bytes_u64(head + DOCUMENTS_AT);
	return check_counts(m);
}

/* ---- sequences ---- */

/* Checks a sequence that begins at byte @pointer, as the index says. */
static bool check_sequence(struct megatron *m, uint64_t i, int32_t length, uint64_t pointer)
{
	uint64_t width = m->width, bytes = (uint64_t)length * width, size = m->s->b->size;

	if (pointer > size || bytes > size - pointer || pointer % width != 0 ||
		(bytes > 0 && pointer > m->begin && pointer < m->end))
		return refuse(m,
			"sequence %" PRIu64 " begins at byte %" PRId64 " and has %" PRId32
			" tokens of %s; must begin at a multiple of their size, outside the "
			"previous one (bytes %" PRIu64 " to %" PRIu64
			"), and end within the .bin's %" PRIu64 " bytes",
			i, (int64_t)pointer, length, shard_type_name(m->type), m->begin, m->end,
			size);
	if (bytes > 0) {
		m->begin = pointer;
		m->end = pointer + bytes;
		m->ends += order_mix64(m->begin) - order_mix64(m->end);
	}
	if (i == 0)
		m->first = pointer;
	return true;
}

/*
 * Adds all sequences; if the shard is only described, without reading where they are. Checking only
 * the first and the last sequence would miss gaps between them. Sequences may leave bytes out, but
 * not have more tokens than the .bin: the index would be that of another .bin.
 */
static bool walk_sequences(struct megatron *m)
{
	struct map *map = m->s->map;
	uint64_t at = HEADER_BYTES, n = m->sequences, most = m->s->b->size / m->width;
	uint64_t item, pointer = 0;
	struct bytes_array lengths = {.b = m->s->index, .at = at, .count = n, .width = 4};
	struct bytes_array pointers = {.b = m->s->index, .at = at + 4 * n, .count = n, .width = 8};

	map->scattered = map->counts;
	for (uint64_t i = 0; i < n && map->tokens <= most; i++) {
		if (!bytes_next(&lengths, &item, m->s->fault))
			return false;
		int32_t length = (int32_t)item;

		if (length < 0)
			return check(m, length, 0, INT32_MAX, "length of sequence %" PRIu64, i);
		if (!map->counts && (!bytes_next(&pointers, &pointer, m->s->fault) ||
					    !check_sequence(m, i, length, pointer)))
			return false;
		map_add(map, pointer, (uint64_t)length, false);
	}
	if (map->tokens > most)
		return refuse(m,
			"its sequences have over %" PRIu64
			" tokens, which the .bin holds at most: it is truncated, or they overlap",
			most);
	/* If they fill the .bin, each but one begins where another ends. */
	return map->counts || map->tokens < most ||
	       m->ends == order_mix64(0) - order_mix64(most * m->width) ||
	       refuse(m, "its sequences are as long as the .bin, but overlap: pointers of merged "
			 "files were not moved, or overflowed; write it again");
}

/*
 * Sequences need not be contiguous. But if they would be, and would fill the .bin, with tokens of
 * another width, the dtype is wrong and the tokens would be garbage.
 */
static bool check_width(const struct megatron *m)
{
	uint64_t last = (m->end - m->begin) / m->width, before = m->s->map->tokens - last;

	for (uint32_t other = 1; other <= 8 && m->begin != m->first + before * m->width; other *= 2)
		if (m->begin == m->first + before * other &&
			m->begin + last * other == m->s->b->size)
			return refuse(m,
				"dtype is %s, of %" PRIu32
				" bytes; its pointers and the .bin's %" PRIu64
				" bytes match tokens of %" PRIu32 " bytes",
				shard_type_name(m->type), m->width, m->s->b->size, other);
	return true;
}

/* ---- the shard ---- */

/*
 * Recognises a .bin by its .idx, even a damaged one: otherwise the .bin would be served as a flat
 * file.
 */
static bool megatron_recognise(const struct bytes *b)
{
	const struct shard_hint hint = {.objects = b->objects};

	return side_id(SIDE_INDEX, &shard_megatron, &hint, b->path) != 0;
}

static bool megatron_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	struct megatron m = {.s = s};

	if (!s->index)
		return fault_data(s->fault,
			"has no .idx next to it; add it, or set `format: flat` if it holds plain "
			"tokens");
	if (!read_header(&m))
		return false;
	s->map->width = m.width;
	if (!walk_sequences(&m) || (!s->map->counts && !check_width(&m)))
		return false;
	facts->type = m.type;
	facts->documents = m.sequences;
	uint64_t spare = b->size - s->map->tokens * m.width;

	if (m.modes)
		snprintf(facts->note, sizeof(facts->note),
			"is multimodal: modes are ignored, all sequences are served as tokens");
	else if (spare > 0)
		snprintf(facts->note, sizeof(facts->note),
			"%" PRIu64 " of the .bin's %" PRIu64
			" bytes are in no sequence of the .idx and are not served",
			spare, b->size);
	return true;
}

const struct shard_format shard_megatron = {
	.name = "megatron",
	.recognise = megatron_recognise,
	.scan = megatron_scan,
	.indexed = true,
};
