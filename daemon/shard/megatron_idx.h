/*
 * The header of Megatron's .idx: the type of the tokens, and the numbers of sequences (N) and
 * document boundaries (D). Three arrays follow without gaps: lengths i32[N], pointers i64[N],
 * documents i64[D]. Multimodal files also have modes i8[N].
 */
#ifndef TOKEND_SHARD_MEGATRON_IDX_H
#define TOKEND_SHARD_MEGATRON_IDX_H

#include "daemon/shard/format.h"

/* An open .idx whose header has been read and compared with its size. */
struct megatron_idx {
	struct bytes *file;
	enum shard_type type;
	uint32_t width;
	uint64_t sequences, documents; /* lengths of the arrays */
	bool modes;
};

/* The path of a .bin's .idx. False: the shard's name does not end in .bin. */
bool megatron_idx_path(const struct bytes *b, char *path, size_t path_bytes);
/*
 * Opens the .idx, reads its header and compares it with its size. The caller closes idx->file if it
 * is set, after a failure too. False: @fault.
 */
bool megatron_open_idx(struct megatron_idx *idx, const struct bytes *b, struct fault *fault);

/* The offset of item @i of each array. */
uint64_t megatron_lengths_at(const struct megatron_idx *idx, uint64_t i);
uint64_t megatron_pointers_at(const struct megatron_idx *idx, uint64_t i);
uint64_t megatron_documents_at(const struct megatron_idx *idx, uint64_t i);

#endif
