/*
 * A dataset: the sorted list of its shards, the position of each, and the table of its windows.
 * Opening a dataset reads the metadata of every shard: stat(), and the header if its format has
 * one. With a manifest no shard is read; each is compared with the manifest when it is first
 * opened. An open dataset is read-only and shared by all threads, except for the members that
 * dataset_open_shard() fills.
 */
#ifndef TOKEND_DATASET_H
#define TOKEND_DATASET_H

#include "daemon/catalog/manifest.h"
#include "daemon/config/config.h"
#include "daemon/shard/shard.h"
#include "daemon/store/store.h"
#include "proto/cursor.h"
#include "proto/fault.h"
#include "proto/table.h"

#include <sys/stat.h>

struct dataset {
	const struct config_dataset *config;
	const struct shard_format *format;
	struct table table;	   /* of the whole path */
	uint64_t windows;	   /* N, of its part */
	uint32_t token_bytes;	   /* served width: the stream's, so the same in all its datasets */
	_Atomic uint64_t *samples; /* the daemon's counter of those that were read, or NULL */

	/* ---- how its tokens are read ---- */

	/* The tokens of every shard are contiguous in the file, in the served width, so they are
	 * read from the file itself. Other shards are read through dataset_open_shard(). With a
	 * manifest it is false: plain shards are found when they are opened. */
	bool plain;
	bool is_signed; /* a token that is read as it is may be negative: the reader checks */
	uint64_t limit; /* the reader checks that tokens are below it; 0: nothing to check */
	uint64_t sample_tokens; /* > 0: windows are samples of this length */
	uint64_t padding;	/* tokens; 0 also with a manifest */
	uint64_t frame_bytes;	/* compressed: decoded size of the largest frame; otherwise 0 */
	char column[64];	/* of the first shard, or "" */
	struct shard_hint hint; /* for describing and opening shards; `frames` is not set */

	/* ---- annotations ---- */

	bool marked;  /* side files may have them, so plain shards are opened too */
	bool has_eos; /* the stream has an eos; it ends a document in shards without an index */
	uint32_t eos;
	uint64_t unindexed; /* the first shard without starts of documents; table.shards: none.
			       Samples count as documents. */
	bool masks, bounds; /* the first shard has a loss mask; has a list of document bounds. With
			       loss_mask: true all shards agree. */
	char *label_mask;   /* absolute, or NULL */

	/* ---- remarks for users ---- */

	char note[sizeof(((struct shard_facts *)0)->note)]; /* shard_facts.note of the first shard
							       that has one */
	uint64_t note_shard;
	enum sample_kind doubt_kind; /* of samples, not SAMPLE_FINE: about doubt_shard */
	char doubt[256];
	uint64_t doubt_shard;
	const struct config_dataset *overlaps; /* an earlier one of the stream that has windows of
						  this part; or NULL */
	char *refused; /* "FILE:LINE: …": the first sampled token that cannot be served; or NULL */

	/* ---- its shards ---- */

	uint64_t path_digest; /* of (path, tokens) of all shards */
	uint64_t digest;      /* the same, and of the part if there is one: the cursor's */
	uint64_t contents;    /* a hash of sampled tokens, or of the manifest's digests: equal on
				 all nodes that have the same shards */
	struct shard_list list;
	bool listed;			  /* by a manifest */
	struct dataset_identity manifest; /* 0: none, or in a store */
	/*
	 * [shards] With a manifest, file.inode and sides are 0 until dataset_open_shard() has
	 * compared the shard. In a store, only the bytes of `file` are used. Only that function
	 * writes to it. No two threads open the same shard at once.
	 */
	struct entry *entry;

	/* ---- in a store; otherwise 0 ---- */

	const struct objects *objects; /* &finder, with which shards and side files are found */
	struct objects finder;
	const struct store_bucket *bucket;
	size_t key_bytes;	 /* as in struct manifest */
	struct shard_list sides; /* the same */
	uint32_t piece; /* > 0: they are read in pieces of so many bytes, through the cache */
};

/* Is it less than the whole of its path? */
static inline bool dataset_is_part(const struct dataset *dataset)
{
	return dataset->config->lo > 0 || dataset->config->hi < ORDER_UNITS;
}

/* Do both have the same shards in the same directory or store? */
bool dataset_same_path(const struct dataset *a, const struct dataset *b);
/* The shard's path relative to the dataset's root. */
const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard);
/* Writes the shard's absolute path to @path; "": it does not fit. */
void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes);
/*
 * The object that a shard is, for a dataset in a store. Its strings belong to the dataset. It needs
 * no dataset_same_shard(): the store compares size and ETag with each answer.
 */
void dataset_object(const struct dataset *dataset, uint64_t shard, struct object *object);
/*
 * Whether an open file with @st is still the shard that was listed. False: FAULT_CHANGED, with the
 * difference. True for a manifest's shard that dataset_open_shard() has not compared yet.
 */
bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault);

/* Whether the shard is known to be plain. */
static inline bool dataset_is_plain(const struct dataset *dataset, uint64_t shard)
{
	return dataset->entry[shard].plain_at > 0;
}

/* The offset of a plain shard's first token in its file. */
static inline uint64_t dataset_data_at(const struct dataset *dataset, uint64_t shard)
{
	return dataset->entry[shard].plain_at - UINT64_C(1);
}

/*
 * Size of the cache of decoded frames, for all datasets together; also the largest decoded size of
 * a frame.
 */
uint64_t dataset_frames_budget(const struct config *config);

/* Fills @source for cursor_begin() and cursor_add(). Borrows the name. */
void dataset_source(const struct dataset *dataset, struct cursor_source *source);

/* ---- its shards, now ---- */

/*
 * Compares the names of the shards, and size, inode and mtime of each, with the list; a manifest
 * by its own size, inode and mtime. One stat() a shard; nothing is opened. False: @fault says what
 * differs. True for what cannot be looked at now, and for a dataset in a store, whose ETags are
 * compared when it is read. Blocks.
 */
bool dataset_current(
	const struct config *config, const struct dataset *dataset, struct fault *fault);
/*
 * Opens the shard for shard_read(), if it is still what was listed. @fd is @path, open, and
 * dataset_same_shard() has accepted it; in a store it is -1. The caller keeps @fd open for the life
 * of the shard, and closes it. @frames may be NULL. Blocks. On failure returns NULL; @fault is
 * without the path. FAULT_CHANGED: it is not what was listed; FAULT_DATA: it cannot be served.
 * fault->error is set if a system call failed.
 */
struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, struct fault *fault);

/* ---- tokens that may not be served: not below the vocab, or negative ---- */

/*
 * Returns the index of the first of @n tokens, in served width, that may not be served, or @n. A
 * client may write to the tokens at the same time; the memory that is read depends on @n alone.
 */
uint64_t vocab_first_refused(const struct dataset *dataset, const void *tokens, uint64_t n);
/* Fills @fault (FAULT_TOKEN) for the shard's token @token, which may not be served. Always false.
 */
bool vocab_refuse(
	const struct dataset *dataset, uint64_t token, uint32_t value, struct fault *fault);

/* ---- how it is read from a store, by `fetch:`: by window, or in pieces through the cache ---- */

/* Writes how the dataset is read, and why: "by window: there is no cache". "": it is local. */
void dataset_fetch_reason(
	const struct config *config, const struct dataset *dataset, char *text, size_t text_bytes);

/* ---- remarks for users ---- */

/* @doubt: trainers are warned, because the tokens may not be the ones that are meant. */
typedef void dataset_teller(void *context, bool doubt, const char *text);
/* Calls @tell with each remark, a line that begins with the dataset's name. */
void dataset_notes(const struct dataset *dataset, dataset_teller *tell, void *context);

#endif
