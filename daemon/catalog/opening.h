/* Opening the streams and datasets of a config: for the files of this room. */
#ifndef TOKEND_OPENING_H
#define TOKEND_OPENING_H

#include "daemon/catalog/catalog.h"
#include "daemon/shard/list.h"

#include <pthread.h>
#include <stdio.h>

struct opening {
	const struct config *config;
	const struct config_stream *stream;
	const struct config_dataset *source;
	struct stores *stores; /* or NULL */
	struct dataset *dataset;
	pthread_mutex_t *lock; /* for members of *dataset that several threads write */
	struct fault *fault;
	FILE *saved; /* of dataset_save(); NULL: shards are opened */
};

/*
 * Reports a fault about a key of the dataset, as config_refuse(): "FILE:LINE:
 * streams.NAME.datasets[I].KEY: TEXT", index I. Always false.
 */
__attribute__((format(printf, 4, 5))) bool opening_refuse(
	const struct opening *o, int line, const char *key, const char *text, ...);
bool opening_refuse_memory(const struct opening *o);
/*
 * Reports @cause, a fault of the shard @path. Keeps its code and errno if a system call failed.
 * Always false.
 */
bool opening_refuse_shard(const struct opening *o, const char *path, const struct fault *cause);
/* The hint for describing shards. Borrows from the config. */
struct shard_hint opening_hint(const struct opening *o);
/* Looks up the dataset's `format`; *@format is NULL for auto. False: o->fault. */
bool opening_format(const struct opening *o, const struct shard_format **format);
/* Moves the names of @list to the dataset and allocates its arrays per shard. False: o->fault. */
bool opening_allocate(const struct opening *o, struct shard_list *list);

/* ---- streams ---- */

/*
 * Opens the datasets of @source and makes the stream's initial cursor. On failure returns false and
 * @fault, as config_refuse() fills it; catalog_free() frees the stream. @saved: of
 * dataset_save(); NULL: shards are opened.
 */
bool stream_open(struct stream *stream, const struct config_stream *source,
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault);
/*
 * Reports @cause, a fault of a cursor made from the config, as config_refuse(): "FILE:LINE:
 * streams.NAME: FIELD: TEXT". Always false.
 */
bool stream_refuse(const struct stream *stream, const struct fault *cause, struct fault *fault);
/* ---- datasets ---- */

/*
 * Fills *o->dataset, whose `config` is set, from files or from a manifest. On failure returns false
 * and o->fault; the caller calls dataset_close() in either case.
 */
bool dataset_open(const struct opening *o);
/* Lists the shards at the dataset's path and describes each. False: o->fault. */
bool dataset_from_files(const struct opening *o);
/*
 * Takes the dataset's shards from its manifest, without reading any, except that loss_mask: true
 * describes the first one. Whether a shard is plain, and the offset of its tokens, is found when it
 * is opened. False: o->fault.
 */
bool dataset_from_manifest(const struct opening *o);
/* Writes a dataset that is not in a store. False: errno. */
bool dataset_save(struct dataset *dataset, FILE *to);
/* Fills o->dataset with what dataset_save() wrote to o->saved. False: o->fault. */
bool dataset_from_saved(const struct opening *o);
/* Fills dataset->names, which stays empty if there is no doubt. */
void dataset_doubt_names(struct dataset *dataset);

struct dataset_identity dataset_identify(const struct stat *st);
bool dataset_is_indexed(const struct shard_facts *facts);
/*
 * Call it when sample_tokens is known of all shards. If the format mixes rows and one shard has
 * others than windows, all are opened with their samples joined.
 */
void dataset_settle_rows(struct dataset *dataset);
/* A hash of the identities of the shard's side files; 0: there are none. */
uint32_t dataset_sides(const struct shard_facts *facts);
/*
 * Stores the identity of the shard's side files and, if documents are requested, whether it is
 * indexed.
 */
void dataset_keep_annotations(
	const struct dataset *d, uint64_t shard, const struct shard_facts *facts);
/* Asserts the invariants of an open dataset. */
void dataset_check(const struct dataset *d);
/*
 * Serves the dataset in @token_bytes, which is more than its own width. Its shards are then
 * converted when they are read, so it is no longer plain.
 */
void dataset_widen(struct dataset *d, uint32_t token_bytes);
/* Makes no shard plain. */
void dataset_not_plain(struct dataset *d);
/* Frees the members of *@dataset, not the struct. */
void dataset_close(struct dataset *dataset);

/* ---- samples ---- */

/*
 * Samples shards for tokens of another type than the config's, or not below the stream's vocab. Up
 * to SAMPLE_SHARDS shards are sampled when a dataset is opened; `tokctl inspect --deep` looks at
 * all, and `tokctl manifest` did. A wrong type is an error, because all tokens of the shard
 * would be wrong. A token that may not be served is only recorded in dataset->refused: the stream
 * will stop there, and `tokend --check` fails.
 * A hash of all samples lets ranks notice nodes with other tokens under the same names.
 */
enum { SAMPLE_SHARDS = 64 };

/* Samples a dataset whose shards have been described. False: o->fault. */
bool sample_dataset(const struct opening *o);

/* ---- in a store ---- */

/*
 * The side files that a manifest lists. In memory, the size, the line and the ETag follow each
 * name. A name that is relative to the dataset has the dataset's key before it; other names are
 * URLs.
 */
struct side {
	uint64_t size, line; /* line: of the manifest */
	const char *name, *etag;
};

/* Appends a side file. A name that was just added with the same size and ETag is ignored. */
bool side_list_add(
	struct shard_list *list, const char *key, const struct side *side, struct fault *fault);
struct side side_list_at(const struct shard_list *list, uint64_t i);
/*
 * Sorts the list and drops repeated entries. False: *@one and *@other have one name, and another
 * size or ETag.
 */
bool side_list_end(struct shard_list *list, struct side *one, struct side *other);

struct dataset_objects {
	struct objects objects;
	const struct store_bucket *bucket;
	size_t key_bytes;	 /* as in struct manifest */
	struct shard_list sides; /* the same */
};

/* Takes the objects of @manifest; dataset_close() frees them. False: out of memory. */
bool dataset_objects_take(
	struct dataset *dataset, struct manifest *manifest, struct stores *stores);

#endif
