#include "client/ctl/offline/pack_megatron.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { IDX_HEADER_BYTES = 34, SEQUENCE_MOST = INT32_MAX };

static void put32(uint8_t *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

bool pack_sequences_begin(struct pack_sequences *s, const char *part, const char *path,
	uint32_t token_bytes, struct fault *fault)
{
	*s = (struct pack_sequences){.part = part, .token_bytes = token_bytes};
	s->lengths = fopen(path, "w+e");
	if (!s->lengths)
		return pack_fail(fault, path, errno);
	unlink(path); /* so that it vanishes with the process */
	return true;
}

static bool keep_sequence(struct pack_sequences *s, uint64_t tokens, struct fault *fault)
{
	uint8_t length[4];

	if (tokens > SEQUENCE_MOST)
		return fault_set(fault, FAULT_ARGUMENT, "eos",
			"%s: a document of %" PRIu64
			" tokens is too long for Megatron (at most %d); give --eos, or more "
			"--shards",
			s->part, tokens, SEQUENCE_MOST);
	put32(length, (uint32_t)tokens);
	s->sequences++;
	return fwrite(length, sizeof(length), 1, s->lengths) == 1 ||
	       pack_fail(fault, s->part, errno);
}

bool pack_sequences_add(struct pack_sequences *s, const uint32_t *ends, int64_t count, uint64_t n,
	struct fault *fault)
{
	uint64_t at = 0;

	for (int64_t i = 0; i < count; i++) {
		if (!keep_sequence(s, s->open_tokens + ends[i] - at, fault))
			return false;
		s->open_tokens = 0;
		at = ends[i];
	}
	s->open_tokens += n - at;
	return true;
}

static void idx_header(const struct pack_sequences *s, uint8_t *header)
{
	static const uint8_t magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

	memcpy(header, magic, sizeof(magic));
	put64(header + 9, 1);
	header[17] = s->token_bytes == 2 ? 8 : 4; /* u16, i32 */
	put64(header + 18, s->sequences);
	put64(header + 26, s->sequences + 1);
}

/* Copies the lengths to @idx; with @pointers, the byte offsets that they add up to instead. */
static bool copy_lengths(struct pack_sequences *s, FILE *idx, bool pointers)
{
	uint64_t at = 0;
	uint8_t length[4], pointer[8];

	rewind(s->lengths);
	for (uint64_t i = 0; i < s->sequences; i++) {
		if (fread(length, sizeof(length), 1, s->lengths) != 1)
			return false;
		put64(pointer, at);
		if (pointers ? fwrite(pointer, 8, 1, idx) != 1 : fwrite(length, 4, 1, idx) != 1)
			return false;
		at += (uint64_t)get32(length) * s->token_bytes;
	}
	return true;
}

/* The document index: every sequence is a document. */
static bool put_documents(const struct pack_sequences *s, FILE *idx)
{
	uint8_t document[8];

	for (uint64_t i = 0; i <= s->sequences; i++) {
		put64(document, i);
		if (fwrite(document, sizeof(document), 1, idx) != 1)
			return false;
	}
	return true;
}

bool pack_sequences_write(struct pack_sequences *s, const char *path, struct fault *fault)
{
	uint8_t header[IDX_HEADER_BYTES];

	if (s->open_tokens > 0 && !keep_sequence(s, s->open_tokens, fault))
		return false;
	if (fflush(s->lengths) != 0)
		return pack_fail(fault, path, errno);
	FILE *idx = fopen(path, "we");

	if (!idx)
		return pack_fail(fault, path, errno);
	idx_header(s, header);
	bool fine = fwrite(header, sizeof(header), 1, idx) == 1 && copy_lengths(s, idx, false) &&
		    copy_lengths(s, idx, true) && put_documents(s, idx) && fflush(idx) == 0 &&
		    fsync(fileno(idx)) == 0;
	int error = errno;

	fclose(idx);
	return fine || pack_fail(fault, path, error);
}

void pack_sequences_end(struct pack_sequences *s)
{
	if (s->lengths)
		fclose(s->lengths);
	s->lengths = NULL;
}
