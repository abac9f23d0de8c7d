/*
 * llm.c's .bin: a header of 256 i32 (magic, version, number of tokens, then zeros), then the
 * tokens: u16 for GPT-2, u32 for Llama-3. Evaluation files have a similar header, but hold
 * questions and answers, so they are rejected.
 */
#include "daemon/shard/format.h"

#include <inttypes.h>
#include <string.h>

enum { HEADER_BYTES = 256 * 4, EVALUATION = 20240522 };

static const struct kind {
	uint32_t magic, version;
	enum shard_type type;
	const char *name;
} kinds[] = {
	{20240520, 1, SHARD_U16, "GPT-2"},
	{20240801, 7, SHARD_U32, "Llama-3"},
};

static const struct kind *kind_of(uint32_t magic)
{
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].magic == magic)
			return &kinds[i];
	return NULL;
}

static bool is_known(uint32_t magic)
{
	return kind_of(magic) || magic == EVALUATION;
}

/* Also recognises a header after a damaged magic, so that it is not served as tokens: the count
 * matches the size of the file, and the rest of the header is zero. */
static bool llmc_recognise(const struct bytes *b)
{
	static const uint8_t zeros[HEADER_BYTES - 12];
	uint8_t head[HEADER_BYTES];
	size_t n = bytes_head(b, head, sizeof(head));

	if (n >= 4 && (is_known(bytes_u32(head)) || is_known(__builtin_bswap32(bytes_u32(head)))))
		return true;
	uint64_t count = n == sizeof(head) ? bytes_u32(head + 8) : 0, rest = b->size - n;

	return count > 0 && (rest == 2 * count || rest == 4 * count) &&
	       memcmp(head + 12, zeros, sizeof(zeros)) == 0;
}

static bool llmc_scan(const struct shard_scan *s)
{
	const struct bytes *b = s->b;
	struct shard_facts *facts = s->facts;
	uint8_t head[HEADER_BYTES];

	if (b->size < sizeof(head))
		return fault_data(s->fault,
			"its size is %" PRIu64
			" bytes; llm.c's header alone is %zu: the file is truncated",
			b->size, sizeof(head));
	if (!bytes_read(b, 0, head, sizeof(head), s->fault))
		return false;
	const struct kind *kind = kind_of(bytes_u32(head));
	uint32_t count = bytes_u32(head + 8);

	if (!kind)
		return fault_data(s->fault,
			"magic is %" PRIu32 "%s; must be %" PRIu32 " (GPT-2) or %" PRIu32
			" (Llama-3)",
			bytes_u32(head),
			bytes_u32(head) == EVALUATION
				? ", an evaluation file: questions and answers, not a stream of "
				  "tokens; move it away"
			: is_known(__builtin_bswap32(bytes_u32(head))) ? ", which is big-endian"
								       : "",
			kinds[0].magic, kinds[1].magic);
	if (bytes_u32(head + 4) != kind->version)
		return fault_data(s->fault,
			"version is %" PRIu32 "; must be %" PRIu32 " for llm.c's %s magic",
			bytes_u32(head + 4), kind->version, kind->name);
	if (!bytes_check("token count", (int32_t)count, 0, INT32_MAX, s->fault))
		return false;
	uint64_t size = HEADER_BYTES + (uint64_t)count * shard_type_bytes(kind->type);

	if (b->size != size)
		return fault_data(s->fault,
			"token count is %" PRIu32 " (%s), which makes a file of %" PRIu64
			" bytes; the file has %" PRIu64,
			count, shard_type_name(kind->type), size, b->size);
	facts->type = kind->type;
	facts->tokens = count;
	facts->data_at = HEADER_BYTES;
	return true;
}

const struct shard_format shard_llmc = {
	.name = "llmc",
	.recognise = llmc_recognise,
	.scan = llmc_scan,
};
