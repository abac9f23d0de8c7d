/*
 * llm.c's .bin: a header of 256 i32 (magic, version, number of tokens, then zeros), then the
 * tokens: u16 for GPT-2, u32 for Llama-3.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <string.h>

enum { HEADER_BYTES = BYTES_HEAD }; /* 256 * 4 */

static const struct kind {
	uint32_t magic, version;
	enum shard_type type;
} kinds[] = {
	{20240520, 1, SHARD_U16},
	{20240801, 7, SHARD_U32},
};

static const struct kind *kind_of(uint32_t magic)
{
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].magic == magic)
			return &kinds[i];
	return NULL;
}

/* Also recognises a header after a damaged magic, so that it is not served as tokens: the count
 * matches the size of the file, and the rest of the header is zero. */
static bool llmc_recognise(const struct bytes *b)
{
	static const uint8_t zeros[HEADER_BYTES - 12];
	uint32_t magic = bytes_u32(b->head);
	uint64_t count = bytes_u32(b->head + 8), rest = b->size - HEADER_BYTES;

	return kind_of(magic) || kind_of(__builtin_bswap32(magic)) ||
	       (count > 0 && (rest == 2 * count || rest == 4 * count) &&
		       memcmp(b->head + 12, zeros, sizeof(zeros)) == 0);
}

static bool llmc_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	const uint32_t magic = bytes_u32(b->head), version = bytes_u32(b->head + 4);
	const struct kind *kind = kind_of(magic);

	if (!kind || version != kind->version)
		return fault_data(s->fault,
			"magic is %" PRIu32 "%s and version %" PRIu32 "; must be %" PRIu32
			" and 1 (GPT-2), or %" PRIu32 " and 7 (Llama-3)",
			magic, kind_of(__builtin_bswap32(magic)) ? " (big-endian)" : "", version,
			kinds[0].magic, kinds[1].magic);
	facts->type = kind->type;
	facts->tokens = bytes_u32(b->head + 8);
	facts->data_at = HEADER_BYTES;
	uint64_t size = HEADER_BYTES + facts->tokens * shard_type_bytes(kind->type);

	return b->size == size ||
	       fault_data(s->fault,
		       "token count is %" PRIu64 " (%s), which makes a file of %" PRIu64
		       " bytes; the file has %" PRIu64,
		       facts->tokens, shard_type_name(kind->type), size, b->size);
}

const struct shard_format shard_llmc = {
	.name = "llmc",
	.recognise = llmc_recognise,
	.scan = llmc_scan,
};
