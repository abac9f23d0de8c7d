/*
 * Datasets as they lie on disk: a config's paths become sorted lists of shards with their window
 * tables, and the streams that are made of them. Opening touches every shard once (stat, and the
 * header where a format has one), or, where the dataset has a manifest, none: then each is compared
 * with that when it is opened first. Afterwards all of it but identity is read-only, and shared by
 * every thread.
 */
#ifndef TOKEND_DATASET_H
#define TOKEND_DATASET_H

#include "daemon/config/config.h"
#include "daemon/shard/shard.h"
#include "proto/cursor.h"
#include "proto/fault.h"
#include "proto/table.h"

#include <sys/stat.h>

/* What tells a shard from another file put in its place. */
struct dataset_identity {
	uint64_t inode;
	uint64_t mtime_ns;
	uint64_t bytes;
};

/* Does a shard say where its documents begin? A sample is one of its own. */
enum dataset_indexed { DATASET_UNKNOWN, DATASET_UNINDEXED, DATASET_INDEXED };

struct dataset {
	const struct config_dataset *config;
	const struct shard_format *format;
	char *root; /* absolute; shard paths are relative to it; "" joins to the path itself */
	struct table table;
	uint32_t token_bytes; /* as served: the stream's, and so the same in all its datasets */
	/* Every shard's tokens lie in a row in the file itself, as they are served: read from
	 * there, and only the others through dataset_open_shard(). */
	bool plain;
	bool is_signed; /* plain, but a token may turn out to be negative: whoever reads it looks */
	uint64_t limit; /* tokens must be below it, which nobody has looked at yet; 0: any may be
			   served */
	uint64_t data_at; /* plain: byte offset of a shard's first token, or, where they differ, */
	uint32_t *data_at_of;	/* [shards] of each; else NULL */
	uint64_t sample_tokens; /* > 0: windows are samples */
	uint64_t frame_bytes;	/* compressed: what the largest frame decodes to; else 0 */
	/* Marks of the stream's windows may come from files, not from the tokens alone: shards are
	 * looked into even where they are plain. See annotations.h. */
	bool marked;
	bool has_eos; /* the stream's: ends a document where a shard has no index */
	uint32_t eos;
	uint64_t unindexed; /* the first shard that says nothing of its documents; or the number of
			       shards */
	uint8_t *indexed;   /* [shards] enum dataset_indexed; NULL: nobody asks for documents */
	bool masks, bounds; /* the first shard has a loss mask; a list of bounds. With loss_mask all
			       are alike */
	char *label_mask;   /* absolute, or NULL */
	struct shard_hint hint; /* what shards are described and opened with, without frames */
	char note[sizeof(
		((struct shard_facts *)0)->note)]; /* of the first shard that has one; "" */
	uint64_t note_shard;
	char *refused; /* of the first shard with a sampled token that may not be served:
			* "FILE:LINE: …"; NULL
			*/
	uint64_t refused_shard;
	uint64_t digest;
	char *paths;	   /* all relative paths, each with its 0 */
	uint32_t *path_at; /* [shards] offsets into paths; total length < 4 GiB, refused beyond */
	/*
	 * [shards]; of a manifest's shards both are 0, as `indexed` is, until dataset_open_shard()
	 * has found one to be as listed, which is the only one to write there. No two threads open
	 * the same shard at once.
	 */
	struct dataset_identity *identity;
	uint32_t
		*sides; /* [shards] likewise: shard_facts' index, bounds and mask in one; 0: none */
	uint32_t *plain_at; /* 1 + the byte of the first token, if the shard is plain; NULL: no
			       manifest */
	uint64_t *sizes;    /* [shards] as a manifest says; NULL: there is none, and every shard was
			       looked at */
	uint8_t *types;	    /* [shards] enum shard_type, likewise */
	/* [shards] bool: flat, and not sampled yet (sample.h); NULL: none is. dataset_open_shard()
	 * writes. */
	uint8_t *unsampled;
};

/* The shard's path relative to the dataset's root, and (into @path) the one to open it by. */
const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard);
void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes);
/* Index of the shard called @name (relative path), or -1. */
int64_t dataset_find_shard(const struct dataset *dataset, const char *name);
/* Is the open file still the shard that was listed? False: FAULT_CHANGED, with what differs. Of a
 * manifest's shard only dataset_open_shard() can say so the first time; until then this is true. */
bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault);

/* Is the shard known to be plain? */
static inline bool dataset_is_plain(const struct dataset *dataset, uint64_t shard)
{
	if (dataset->unsampled && dataset->unsampled[shard])
		return false; /* it has to be looked into, once */
	return dataset->plain || (dataset->plain_at && dataset->plain_at[shard] > 0);
}

/* Byte offset of the first token of such a shard. */
static inline uint64_t dataset_data_at(const struct dataset *dataset, uint64_t shard)
{
	if (dataset->plain_at)
		return dataset->plain_at[shard] - 1;
	return dataset->data_at_of ? dataset->data_at_of[shard] : dataset->data_at;
}

/* What is kept of decoded frames, for all datasets together, and what one may decode to at most. */
uint64_t dataset_frames_budget(const struct config *config);

/* What cursor_begin() and cursor_add() want to know of it. Borrows the name. */
void dataset_source(const struct dataset *dataset, struct cursor_source *source);

/* ---- for those that open one ---- */

struct dataset_identity dataset_identify(const struct stat *st);
bool dataset_is_indexed(const struct shard_facts *facts);
/* One number for the shard's side files; 0: there is none. */
uint32_t dataset_sides(const struct shard_facts *facts);
/* Keeps the identity of the shard's side files, and whether it is indexed if the stream asks for
 * documents. */
void dataset_keep_annotations(
	const struct dataset *d, uint64_t shard, const struct shard_facts *facts);
/*
 * Has an open dataset served in @token_bytes, more than its own width: from now on each of its
 * shards is converted when it is read, and none is plain.
 */
void dataset_widen(struct dataset *d, uint32_t token_bytes);
/* Frees what the dataset owns, not *@dataset. */
void dataset_close(struct dataset *dataset);

#endif
