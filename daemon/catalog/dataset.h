/*
 * A dataset: the sorted list of its shards, where each begins, and the table of its windows.
 * Opening one looks at every shard once (stat(), and the header if its format has one). A dataset
 * with a manifest is opened without that; each shard is then compared with the manifest when it is
 * first opened. Afterwards everything is read-only and shared by all threads, except for the
 * members that dataset_open_shard() fills for a manifest's shards.
 */
#ifndef TOKEND_DATASET_H
#define TOKEND_DATASET_H

#include "daemon/config/config.h"
#include "daemon/shard/shard.h"
#include "proto/cursor.h"
#include "proto/fault.h"
#include "proto/table.h"

#include <sys/stat.h>

/* Distinguishes a shard from another file put in its place. */
struct dataset_identity {
	uint64_t inode;
	uint64_t mtime_ns;
	uint64_t bytes;
};

/* Does a shard's format, or a list of bounds, say where documents begin? Samples are documents. */
enum dataset_indexed { DATASET_UNKNOWN, DATASET_UNINDEXED, DATASET_INDEXED };

struct dataset {
	const struct config_dataset *config;
	const struct shard_format *format;
	char *root; /* absolute; shard paths are relative to it; "" if those are whole */
	struct table table;
	uint32_t token_bytes; /* as served: the stream's, and so the same in all its datasets */

	/* ---- how its tokens are read ---- */

	/* The tokens of every shard are contiguous in the file, in the served width, so they are
	 * read from the file itself. Other shards are read through dataset_open_shard(). */
	bool plain;
	bool is_signed;	      /* plain, but a token may be negative: the reader checks */
	uint64_t limit;	      /* the reader checks that tokens are below it; 0: nothing to check */
	uint64_t data_at;     /* plain: byte offset of a shard's first token */
	uint32_t *data_at_of; /* [shards] the same where shards differ; otherwise NULL */
	uint64_t sample_tokens; /* > 0: windows are samples of so many tokens */
	uint64_t frame_bytes;	/* compressed: the largest frame, decoded; otherwise 0 */
	struct shard_hint hint; /* what shards are described and opened with, except for frames */

	/* ---- annotations ---- */

	bool marked;  /* they may come from side files: even plain shards are opened */
	bool has_eos; /* the stream's; it ends a document in shards without an index */
	uint32_t eos;
	uint64_t unindexed; /* the first shard without an index; table.shards: there is none */
	uint8_t *indexed;   /* [shards] enum dataset_indexed; NULL: documents are not requested */
	bool masks, bounds; /* the first shard has a loss mask; a list of document bounds. With
			     * loss_mask all shards are alike. */
	char *label_mask;   /* absolute, or NULL */

	/* ---- what users should know ---- */

	char note[sizeof(((struct shard_facts *)0)->note)]; /* of the first shard that has one */
	uint64_t note_shard;
	char *refused; /* "FILE:LINE: …" of the first sampled token that cannot be served; or NULL
			*/
	uint64_t refused_shard;

	/* ---- its shards ---- */

	uint64_t digest;
	char *paths;	   /* all relative paths, each with its terminating zero */
	uint32_t *path_at; /* [shards] offsets into paths, which is shorter than 4 GiB */
	/*
	 * [shards] With a manifest, identity, sides, indexed and plain_at are 0 until
	 * dataset_open_shard() has compared the shard with the manifest. Nobody else writes there,
	 * and no two threads open the same shard at once.
	 */
	struct dataset_identity *identity;
	uint32_t *sides;    /* [shards] dataset_sides() */
	uint32_t *plain_at; /* [shards] 1 + data_at of a plain one; NULL: there is no manifest */
	uint64_t *sizes;    /* [shards] of the manifest; NULL: there is none */
	uint8_t *types;	    /* [shards] of the manifest, enum shard_type */
	/* [shards] bool: flat, and its type has not been checked (sample.h); NULL: all are checked.
	 * Written by dataset_open_shard(). */
	uint8_t *unsampled;
};

/* The shard's path relative to the dataset's root, and (into @path) the one to open it by. */
const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard);
void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes);
/* Index of the shard called @name (relative path), or -1. */
int64_t dataset_find_shard(const struct dataset *dataset, const char *name);
/*
 * Is the open file still the shard that was listed? False: FAULT_CHANGED, with what differs. True
 * for a shard of a manifest that dataset_open_shard() has not compared yet.
 */
bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault);

/* Is the shard known to be plain? */
static inline bool dataset_is_plain(const struct dataset *dataset, uint64_t shard)
{
	if (dataset->unsampled && dataset->unsampled[shard])
		return false; /* its type is checked when it is opened */
	return dataset->plain || (dataset->plain_at && dataset->plain_at[shard] > 0);
}

/* Byte offset of the first token of such a shard. */
static inline uint64_t dataset_data_at(const struct dataset *dataset, uint64_t shard)
{
	if (dataset->plain_at)
		return dataset->plain_at[shard] - 1;
	return dataset->data_at_of ? dataset->data_at_of[shard] : dataset->data_at;
}

/* Bytes of decoded frames to keep for all datasets together; also the most that one may decode to.
 */
uint64_t dataset_frames_budget(const struct config *config);

/* The dataset as cursor_begin() and cursor_add() take it. Borrows the name. */
void dataset_source(const struct dataset *dataset, struct cursor_source *source);

/* ---- while it is opened ---- */

struct dataset_identity dataset_identify(const struct stat *st);
bool dataset_is_indexed(const struct shard_facts *facts);
/* One number for the shard's side files; 0: there is none. */
uint32_t dataset_sides(const struct shard_facts *facts);
/* Keeps the identity of the shard's side files, and whether it is indexed if the stream asks for
 * documents. */
void dataset_keep_annotations(
	const struct dataset *d, uint64_t shard, const struct shard_facts *facts);
/* Asserts what must be true of an open dataset. */
void dataset_check(const struct dataset *d);
/*
 * Serves the dataset in @token_bytes, which is more than its own width. Its shards are then
 * converted when they are read, and none is plain.
 */
void dataset_widen(struct dataset *d, uint32_t token_bytes);
/* Frees what the dataset owns, not *@dataset. */
void dataset_close(struct dataset *dataset);

#endif
