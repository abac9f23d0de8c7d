/*
 * The header of Megatron's .idx: the type of the tokens, and how many sequences and documents there
 * are. Three arrays follow it without a gap: lengths i32[N], pointers i64[N], documents i64[D], and
 * in multimodal files modes i8[N].
 */
#ifndef TOKEND_SHARD_MEGATRON_IDX_H
#define TOKEND_SHARD_MEGATRON_IDX_H

#include "daemon/shard/format.h"

/* An open .idx, its header read and checked against its size. */
struct megatron_idx {
	struct bytes *file;
	enum shard_type type;
	uint32_t width;
	uint64_t sequences, documents; /* lengths of the arrays */
	bool modes;
};

/* The path of the .idx of a .bin. False: the shard's name is not one of Megatron's. */
bool megatron_idx_path(const struct bytes *b, char *path, size_t path_bytes);
/* Opens the .idx and compares its header with its size. idx->file is to be closed if it is set,
 * even when this returns false. */
bool megatron_open_idx(struct megatron_idx *idx, const struct bytes *b, struct fault *fault);

/* Where item @i of each array lies. */
uint64_t megatron_lengths_at(const struct megatron_idx *idx, uint64_t i);
uint64_t megatron_pointers_at(const struct megatron_idx *idx, uint64_t i);
uint64_t megatron_documents_at(const struct megatron_idx *idx, uint64_t i);

#endif
