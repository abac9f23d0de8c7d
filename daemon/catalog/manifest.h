/*
 * A manifest: the list of a dataset's shards and their facts, a line of JSON each, as `tokctl
 * inspect
 * --manifest` writes it. With it a dataset is opened without looking at a single shard.
 *
 *   {"path":"a/b.npy","format":"npy","dtype":"u16","tokens":5000,"size":10128,
 *    "digest":"09af09af09af09af"}
 *
 * path is below the dataset's directory; lines ascend by it, byte by byte. digest is that of all
 * tokens' values (client/ctl/offline/scan.h): what a reader of the whole shard can compare.
 * sample_tokens, row_tokens and frame_bytes follow where they are not 0; they are what struct
 * shard_facts calls so.
 */
#ifndef TOKEND_MANIFEST_H
#define TOKEND_MANIFEST_H

#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "proto/fault.h"

/* 29 bytes a shard besides the names. */
struct manifest {
	struct shard_list list;
	const struct shard_format *format; /* of all, as are these two: */
	uint32_t token_bytes;		   /* as served */
	uint64_t sample_tokens;
	uint64_t frame_bytes; /* the largest */
	bool is_signed;	      /* a shard is i32 */
	uint64_t *tokens, *sizes, *digests;
	uint8_t *types; /* enum shard_type */
};

/* The facts of a shard that a manifest and the shard itself both have. */
struct manifest_shard {
	const struct shard_format *format;
	enum shard_type type;
	uint64_t tokens, size, sample_tokens;
	uint64_t frame_bytes; /* in a manifest, the largest of all shards */
};

/*
 * Reads @path to its end; @root is the directory that the names start at, and need not be there.
 * @format: what all of them must be, NULL: anything. @hint gives the window, the served width and
 * the budget. A line that contradicts itself, the lines before it or the hint is rejected. False:
 * @m is empty, and @fault has "PATH:LINE: FIELD …" with the line as index; or "PATH: …" with
 * FAULT_NO_INDEX if the file as a whole cannot be read.
 */
bool manifest_read(struct manifest *m, const char *path, const char *root,
	const struct shard_format *format, const struct shard_hint *hint, struct fault *fault);
void manifest_free(struct manifest *m);
/* Is the shard what the manifest says? False: FAULT_CHANGED, with the
 * field ("size", "format", "dtype", "tokens", …) and both values. */
bool manifest_same(const struct manifest_shard *listed, const struct manifest_shard *found,
	struct fault *fault);

#endif
