/*
 * A manifest: the list of a dataset's shards and their facts, as `tokctl manifest` writes
 * it. With it a dataset is opened without reading any shard. Each line is a JSON object:
 *
 *   {"path":"a/b.npy","format":"npy","dtype":"u16","tokens":5000,"size":10128,
 *    "digest":"09af09af09af09af"}
 *
 * path is relative to the dataset's directory; lines are sorted by it, byte by byte. digest is a
 * hash of all tokens (client/ctl/offline/shards.h), which only tools that read the whole shard
 * compare. sample_tokens, row_tokens and frame_bytes follow if they are not 0; they are as in
 * struct shard_facts.
 *
 * For shards in a store, three more members follow. For local shards they are ignored, so that one
 * manifest serves both.
 *
 *   "etag":"b1946ac92492d2347c6235b4d2611184","data_at":128,
 *   "side":{"a/b.csv.gz":[4242,"591785b794601e212b260e25925636fd"]}
 *
 * etag is as the store reports it, without quotes; with it, digest may be absent. data_at is the
 * byte of a plain shard's first token. side has the size and ETag of each side file, by its path
 * below the dataset's directory; otherwise, in a directory label_mask, by its URL. Files on a disk
 * have no ETag: [4242].
 */
#ifndef TOKEND_MANIFEST_H
#define TOKEND_MANIFEST_H

#include "daemon/config/config.h"
#include "daemon/shard/list.h"
#include "daemon/shard/shard.h"
#include "proto/fault.h"

#include <jansson.h>

/* Tells whether a shard was replaced or rewritten. */
struct dataset_identity {
	uint64_t inode;
	uint64_t mtime_ns;
	uint64_t bytes;
};

/* A shard. Its name and number of tokens are kept elsewhere. */
struct entry {
	struct dataset_identity file; /* of a manifest's line: only bytes */
	uint64_t digest;	      /* of its tokens; 0: none */
	uint32_t plain_at;	      /* 1 + data_at of a plain shard; 0: not plain, or not known */
	uint32_t sides;		      /* dataset_sides() */
	uint8_t type;		      /* enum shard_type */
};

/*
 * The shards that a manifest lists, or that were found on a disk. Takes 56 bytes per shard, and the
 * names; in a store the keys, the ETags, and those of the side files.
 */
struct manifest {
	struct shard_list list;
	const struct shard_format *format; /* of all shards, as are the next two */
	uint32_t token_bytes;		   /* served width */
	uint64_t sample_tokens;
	uint64_t frame_bytes; /* the largest of all shards */
	bool is_signed;	      /* at least one shard is i32 */
	uint64_t *tokens;     /* of each shard */
	struct entry *entry;  /* likewise; NULL: nothing was read */

	/* ---- in a store; otherwise 0 ---- */

	const struct store_bucket *bucket;
	size_t key_bytes; /* of the directory's key. It is before each name in memory, and the
			     ETag after it, so that a shard's key is one string */
	struct shard_list sides; /* see struct side in opening.h */
};

/* Makes room for @n shards. False: @fault. */
bool manifest_resize(struct manifest *m, uint64_t n, struct fault *fault);
/*
 * Keeps the facts of shard @s, whose name is in the list. The first shard decides what all have.
 * False: @fault, with the field and without the path.
 */
bool manifest_keep(struct manifest *m, uint64_t s, const struct shard_format *format,
	const struct shard_facts *facts, struct fault *fault);

/* The facts that are compared between a manifest and a shard. */
struct manifest_shard {
	const struct shard_format *format;
	enum shard_type type;
	uint64_t tokens, size, sample_tokens;
	uint64_t frame_bytes; /* in a manifest, the largest of all shards */
};

/* Called after each line, whose shard is the last of the list; @line may be changed. False: @fault,
 * which ends the reading. */
typedef bool manifest_visit(
	void *context, const struct manifest *m, json_t *line, struct fault *fault);
/*
 * Reads the manifest @path, a file or a URL. @root is the directory that its paths are relative to,
 * or a URL; a local one need not exist. @stores may be NULL without URLs. @format is the format
 * that all shards must have; NULL: any. @hint gives the window, the served width and the budget.
 * @visit may be NULL. Rejects a line that contradicts itself, an earlier line or the hint.
 *
 * On failure returns false with an empty @m. @fault is "PATH:LINE: FIELD …" with the line as index,
 * or "PATH: …" with FAULT_NO_INDEX if the file cannot be read.
 */
bool manifest_read(struct manifest *m, const char *path, const char *root, struct stores *stores,
	const struct shard_format *format, const struct shard_hint *hint, manifest_visit *visit,
	void *context, struct fault *fault);
void manifest_free(struct manifest *m);
/*
 * Reads the manifest of a dataset that has one, for tools. The caller frees it with
 * manifest_free(). False: @fault, as manifest_read() fills it for a line of the manifest, otherwise
 * as config_refuse().
 */
bool dataset_manifest(const struct config *config, struct stores *stores,
	const struct config_stream *stream, const struct config_dataset *source,
	struct manifest *manifest, struct fault *fault);
/*
 * Whether a shard agrees with the manifest. False: FAULT_CHANGED, with the field ("size", "format",
 * "dtype", "tokens", …) and both values.
 */
bool manifest_same(const struct manifest_shard *listed, const struct manifest_shard *found,
	struct fault *fault);

#endif
