/*
 * Datasets as they lie on disk: a config's paths become sorted lists of shards with their window
 * tables, and the streams that are made of them. Opening touches every shard once (stat, and the
 * header where a format has one), or, where the dataset has a manifest, none: then each is compared
 * with that when it is opened first. Afterwards all of it but identity is read-only, and shared by
 * every thread.
 */
#ifndef TOKEND_DATASET_H
#define TOKEND_DATASET_H

#include "daemon/catalog/manifest.h"
#include "daemon/config/config.h"
#include "proto/cursor.h"
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
	uint32_t token_bytes;
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
	uint32_t *
		beside; /* [shards] likewise: shard_facts' index, bounds and mask in one; 0: none */
	uint32_t *plain_at; /* 1 + the byte of the first token, if the shard is plain; NULL: no
			       manifest */
	uint64_t *sizes;    /* [shards] as a manifest says; NULL: there is none, and every shard was
			       looked at */
	uint8_t *types;	    /* [shards] enum shard_type, likewise */
	/* [shards] bool: flat, and not sampled yet (sample.h); NULL: none is. dataset_open_shard()
	 * writes. */
	uint8_t *unsampled;
};

struct stream {
	const struct config_stream *config;
	const char *file;	 /* the config's, for complaints */
	struct dataset *dataset; /* [config->datasets] */
	uint32_t token_bytes;	 /* of every dataset; mixed widths are refused */
	struct cursor begin;	 /* the cursor at position 0, with the whole schedule */
	void *begin_bytes;	 /* that cursor, encoded: many sessions may ask for it often */
	size_t begin_length;
};

struct catalog {
	const struct config *config;
	struct stream *stream; /* [config->streams] */
};

/* NULL on any fault, with one line in @why that starts "FILE:LINE: ". @config must outlive the
 * catalog. */
struct catalog *catalog_open(const struct config *config, char *why, size_t why_bytes);
/* The same for a single stream: the others are left empty. For tools that need one. */
struct catalog *catalog_open_stream(
	const struct config *config, const char *stream, char *why, size_t why_bytes);
void catalog_free(struct catalog *catalog);
const struct stream *catalog_stream(const struct catalog *catalog, const char *name);

/* The shard's path relative to the dataset's root, and (into @path) the one to open it by. */
const char *dataset_shard_name(const struct dataset *dataset, uint64_t shard);
void dataset_shard_path(
	const struct dataset *dataset, uint64_t shard, char *path, size_t path_bytes);
/* Index of the shard called @name (relative path), or -1. */
int64_t dataset_find_shard(const struct dataset *dataset, const char *name);
/* Is the open file still the shard that was listed? False: what differs, in @why. Of a manifest's
 * shard only dataset_open_shard() can say so the first time; until then this is true. */
bool dataset_same_shard(const struct dataset *dataset, uint64_t shard, const struct stat *st,
	char *why, size_t why_bytes);

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

/*
 * Opens the shard to read from with shard_read(), if it is what was listed. @fd is @path, open, and
 * dataset_same_shard() let it pass; it stays the caller's and must outlive the shard. @frames may
 * be NULL. NULL: @why, and errno is what reading failed with, or 0 where the shard is at fault.
 * Blocks.
 */
struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, char *why, size_t why_bytes);

/* Things that users should know of a dataset, one line each: false where there is none of number
 * @i. */
enum { DATASET_NOTES = 4 };
bool dataset_note(const struct dataset *dataset, unsigned i, char *text, size_t text_bytes);
/*
 * The manifest of a dataset that has one, whole, for tools; manifest_free() is the caller's. False:
 * @why, which starts "FILE:LINE: " or names the manifest's own line.
 */
bool dataset_manifest(const struct config *config, const struct config_stream *stream,
	const struct config_dataset *source, struct manifest *manifest, char *why,
	size_t why_bytes);
/* What is kept of decoded frames, for all datasets together, and what one may decode to at most. */
uint64_t dataset_frames_budget(const struct config *config);

/* What cursor_begin() and cursor_add() want to know of it. Borrows the name. */
void dataset_source(const struct dataset *dataset, struct cursor_source *source);

/*
 * For each dataset of @cursor the stream's own (NULL: not in the config any more, which only a
 * dataset without units may be).
 * @out has cursor->datasets entries. Call after cursor_belongs(cursor, &stream->begin).
 */
void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out);

/*
 * The config's plan for a cursor whose list of datasets may be another one: cursor_schedule() with
 * the schedule's weights and the max_epochs of the datasets, matched by name. A dataset that the
 * config no longer has gets no weight and keeps its limit; one that only the config has may be
 * given weight only once the cursor has it. The mix that is in force stays until the first step,
 * but for a schedule that starts with a ramp which has begun: that one comes from the config's
 * weights. Call after cursor_belongs(). On false, *cursor is as it was, and @why has one line that
 * starts "FILE:LINE: ".
 */
bool stream_schedule(
	const struct stream *stream, struct cursor *cursor, char *why, size_t why_bytes);

#endif
