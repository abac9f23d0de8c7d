/*
 * The streams of a config, with their open datasets and initial cursors.
 *
 * A dataset is the sorted list of its shards, their facts, and the table of its windows. To open
 * one reads the metadata of every shard: stat(), and the header if its format has one. With a
 * manifest no shard is read; each is compared with its line when it is first opened. An open
 * dataset is read-only and shared by all threads, except for what dataset_open_shard() fills.
 */
#ifndef TOKEND_CATALOG_H
#define TOKEND_CATALOG_H

#include "daemon/config/config.h"
#include "daemon/shard/shard.h"
#include "daemon/store/store.h"
#include "proto/cursor.h"
#include "proto/fault.h"
#include "proto/table.h"

#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>

/* A shard. Its name and number of tokens are in dataset.list and dataset.table. */
struct entry {
	uint64_t bytes;
	uint64_t id;	 /* bytes_id(); 0: a manifest's, not compared yet by dataset_open_shard() */
	uint64_t sides;	 /* a hash of its side files' identities; 0: none, or not known */
	uint64_t digest; /* of its tokens, of files of a sample; 0: none */
	uint32_t plain_at; /* 1 + the byte of a plain shard's first token; 0: not plain, or not
			      known */
	uint8_t type;	   /* enum shard_type */
};

/* A line for users, about a dataset. */
struct remark {
	enum {
		REMARK_NOTE,
		REMARK_DOUBT, /* trainers are warned: these may not be the tokens that are meant */
		REMARK_WRONG, /* `tokend --check` fails, too */
	} kind;
	char text[640]; /* "NAME: …", if the dataset has a config */
};

struct dataset {
	/* Of a manifest that a tool reads without a config, all NULL. */
	const struct config *file;
	const struct config_stream *stream;
	const struct config_dataset *config;

	/* ---- its shards, as manifest_read() also fills it ---- */

	struct shard_list list;
	struct entry *entry; /* [shards]; no two threads open the same shard at once */
	const struct shard_format *format; /* of all shards, as are the next two */
	uint32_t token_bytes;	/* served width; then the stream's, so the same in all datasets */
	uint64_t sample_tokens; /* > 0: windows are samples of this length */
	uint64_t odd; /* 0, or a shard with other samples than the first one: all are joined */
	uint64_t frame_bytes; /* compressed: decoded size of the largest frame; otherwise 0 */
	bool is_signed;	      /* a shard is i32: the reader checks for negative tokens */
	struct table table;   /* of the whole path */
	/* In a store, otherwise 0. Each name has the directory's key before it in memory, and the
	 * ETag after it, so that a shard's key is one string. */
	const struct store_bucket *bucket;
	size_t key_bytes;
	json_t *sides; /* [size, ETag] of the listed side files, by key, or by URL if they are
			  elsewhere; NULL: none */

	uint64_t windows; /* N, of its part */
	uint64_t digest;  /* of (path, tokens) of all shards, whether samples are joined, and the
			     part: the cursor's */
	/* Hashes of sampled tokens, or of the manifest's digests, and of bytes of side files: equal
	 * on all nodes that have the same. contents 0: a shard could not be read. */
	uint64_t contents, annotated;
	/* Hashes of sizes and mtimes of the shards with identities of their indexes, and of those
	 * of other side files, at the start. 0: not known. */
	uint64_t files, side_files;
	unsigned known_by;	   /* 0: samples; 1, 2, 4: lines with a digest, an ETag, neither */
	_Atomic uint64_t *samples; /* the daemon's counter of those that were read, or NULL */
	bool listed;		   /* by a manifest */
	uint64_t padding;	   /* of its rows; of files only */
	char column[sizeof(((struct shard_facts *)0)->column)]; /* that holds the tokens, or "" */
	uint64_t manifest; /* dataset_manifest_id() before it was read; 0: none */

	/* ---- how its tokens are read ---- */

	/* The tokens of every shard are contiguous in the file, in the served width, so they are
	 * read from the file itself. Other shards are read through dataset_open_shard(). With a
	 * manifest it is false: plain shards are found when they are opened. */
	bool plain;
	uint64_t limit;		/* the reader checks that tokens are below it; 0: all are served */
	struct shard_hint hint; /* for describing and opening shards; `frames` is not set */
	struct objects finder;	/* of shards and side files in a store; has the stores, if any */
	uint32_t piece; /* > 0: objects are read in pieces of so many bytes, through the cache */

	/* ---- annotations ---- */

	bool marked; /* side files may have them, so plain shards are opened too */
	/* The first shard says where documents start, has a loss mask, has a list of document
	 * bounds. All shards agree, if the stream asks for it. */
	bool indexed, masks, bounds;

	struct remark *remark; /* [remarks] */
	uint32_t remarks;
};

/* Is it less than the whole of its path? */
static inline bool dataset_is_part(const struct dataset *dataset)
{
	return dataset->config->lo > 0 || dataset->config->hi < ORDER_UNITS;
}

/* The object that a shard of a dataset in a store is. Its strings belong to the dataset. The store
 * compares size and ETag with each answer. */
struct object dataset_object(const struct dataset *dataset, uint64_t shard);
/* As objects.find(), whose context is the dataset: finds shards and side files. */
bool dataset_find_object(const void *dataset, const char *url, struct object *object);

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

/* Fills @source for cursor_begin() and cursor_add(). Borrows the name. */
void dataset_source(const struct dataset *dataset, struct cursor_source *source);
/* Makes room for @n shards. False: @fault. */
bool dataset_resize(struct dataset *d, uint64_t n, struct fault *fault);
/*
 * Keeps the facts of shard @s, whose name is in the list. The first shard decides what all have.
 * False: @fault, without the path.
 */
bool dataset_keep(struct dataset *d, uint64_t s, const struct shard_format *format,
	const struct shard_facts *facts, struct fault *fault);
/* Adds remarks on its list: names of some shards say that they do not belong there, or that others
 * are missing. */
void dataset_doubt_names(struct dataset *d);
/* Frees the members, and clears the struct. */
void dataset_close(struct dataset *dataset);

/* ---- its shards, now ---- */

/* Is the file, with bytes_id() @is, still the one that had @was? False: FAULT_CHANGED. @when: "the
 * shard was listed", for the text. */
bool dataset_identical(uint64_t was, uint64_t is, const char *when, struct fault *fault);
/*
 * Whether an open file with @st is still the shard that was listed. False: FAULT_CHANGED. Of a
 * manifest's shard that dataset_open_shard() has not compared yet, only its size is known.
 */
bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault);
/*
 * Compares the names of the shards, and size, inode and mtime of each and of its side files, with
 * the list; a manifest by its own, or in a store by its size and ETag. One stat() a file; nothing
 * is opened. False: @fault says what differs. True for what cannot be looked at now. Blocks.
 */
bool dataset_current(const struct dataset *dataset, struct fault *fault);
/*
 * Opens the shard for shard_read(), if it is still what was listed. @path and @fd are as of
 * shard_open(), and dataset_same_shard() has accepted @fd. @frames may be NULL. Blocks. On failure
 * returns NULL; @fault is without the path. FAULT_CHANGED: it is not what was listed; FAULT_DATA:
 * it cannot be served. fault->error is set if a system call failed.
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

/* ---- manifests (manifest.c says what one contains) ---- */

/* Called after each line, whose shard is the last of the list; @line may be changed. False: @fault,
 * which ends the reading. */
typedef bool manifest_visit(
	void *context, const struct dataset *d, json_t *line, struct fault *fault);
/*
 * Reads the shards of the manifest @path, a file or a URL, into @d, which has none. Its hint gives
 * the window, the served width and the budget, its config, if any, the format; it has the stores
 * for URLs. @root is the directory that its paths are relative to, or a URL; a local one need not
 * exist. @visit may be NULL. Rejects a line that contradicts itself, an earlier line or those.
 *
 * On failure returns false. @fault is "PATH:LINE: …" with the line as index, or "PATH: …" with
 * FAULT_NO_INDEX if the file cannot be read.
 */
bool manifest_read(struct dataset *d, const char *path, const char *root, manifest_visit *visit,
	void *context, struct fault *fault);
/* Whether a listing's or manifest's @name is a path below a directory: none of its parts is empty,
 * "." or "..". */
bool manifest_name_ok(const char *name);
/* Whether the ETag is strong, so that a replaced object is noticed, and fits a request's header. */
bool manifest_etag_ok(const char *etag);
/*
 * The same for the manifest of @d, whose config and stores are set. False: @fault, as of
 * manifest_read() for a line of the manifest, otherwise as config_refuse().
 */
bool dataset_manifest(struct dataset *d, struct fault *fault);
/*
 * Whether a file of @size bytes with @facts is the shard that was listed. False: FAULT_CHANGED,
 * with the field ("size", "format", "dtype", "tokens", …) and both values.
 */
bool dataset_agrees(const struct dataset *dataset, uint64_t shard,
	const struct shard_format *format, const struct shard_facts *facts, uint64_t size,
	struct fault *fault);

/* ---- streams ---- */

struct stream_counts; /* daemon/control/control.h */

struct stream {
	const struct config_stream *config;
	const char *file;	      /* the config's path, for messages */
	uint32_t slot;		      /* its index; its number in engine and reader */
	struct dataset *dataset;      /* [config->datasets] */
	uint32_t token_bytes;	      /* width of a served token: that of the widest dataset */
	struct cursor begin;	      /* the cursor at position 0, with the whole schedule */
	struct stream_counts *counts; /* the daemon's; otherwise NULL */
};

struct catalog {
	const struct config *config;
	struct stream *stream;	 /* [config->streams] */
	struct dataset *dataset; /* [datasets] of all streams, one after another */
	uint32_t datasets;
};

/*
 * Opens all streams of @config, or for tools @only the one that is called so. It and @stores must
 * outlive the catalog; @stores may be NULL if no path or manifest is a URL. @saved: NULL, or what
 * catalog_save() wrote for the same config in another process of this program; then no local shard
 * is opened. On failure returns NULL and @fault, as config_refuse() fills it. Blocks.
 */
struct catalog *catalog_open(const struct config *config, struct stores *stores, const char *only,
	FILE *saved, struct fault *fault);
/* Writes all datasets that are not in a store. False: errno. */
bool catalog_save(const struct catalog *catalog, FILE *to);
void catalog_free(struct catalog *catalog);
/* The stream called @name. NULL: there is none. */
const struct stream *catalog_stream(const struct catalog *catalog, const char *name);

/*
 * Writes the stream's dataset for each dataset of @cursor to @out[cursor->datasets]. NULL: the
 * config no longer has it, which is possible only for a dataset without units. Call it after
 * cursor_belongs(cursor, &stream->begin).
 */
void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out);

/*
 * Reports @cause, a fault of a cursor made from the config, as config_refuse(): "FILE:LINE:
 * streams.NAME: FIELD: TEXT". The line is the stream's, its schedule's, or that of a step. Always
 * false.
 */
bool stream_refuse(const struct stream *stream, const struct fault *cause, struct fault *fault);

/* Calls @tell with each remark about the stream, a line. @doubt: trainers are warned, because the
 * tokens may not be the ones that are meant. */
typedef void stream_teller(void *context, const struct stream *s, bool doubt, const char *text);
void stream_notes(const struct stream *s, stream_teller *tell, void *context);

#endif
