/* Writes a Megatron .idx, the index of the sequences of a .bin. Every document is one sequence. */
#ifndef TOKEND_CTL_PACK_MEGATRON_H
#define TOKEND_CTL_PACK_MEGATRON_H

#include "client/ctl/offline/pack_format.h"

#include <stdio.h>

struct pack_sequences {
	const char *part; /* of the .bin */
	uint32_t token_bytes;
	FILE *lengths; /* an i32 per sequence, in a file without a name; NULL: not begun */
	uint64_t sequences;
	uint64_t open_tokens; /* tokens of the sequence that has not ended yet */
};

/* @part is borrowed. @path: of the .idx. */
bool pack_sequences_begin(struct pack_sequences *s, const char *part, const char *path,
	uint32_t token_bytes, struct fault *fault);
/* Adds a piece of @n tokens in which @count documents end, at @ends. */
bool pack_sequences_add(struct pack_sequences *s, const uint32_t *ends, int64_t count, uint64_t n,
	struct fault *fault);
/* Ends the last sequence and writes the .idx durably to @path. */
bool pack_sequences_write(struct pack_sequences *s, const char *path, struct fault *fault);
void pack_sequences_end(struct pack_sequences *s);

#endif
