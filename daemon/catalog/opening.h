/* Opening the datasets of a config: for the files of this room. */
#ifndef TOKEND_OPENING_H
#define TOKEND_OPENING_H

#include "daemon/catalog/catalog.h"

/*
 * Reports a fault about a key of the dataset, as config_refuse(): "FILE:LINE:
 * streams.NAME.datasets[I].KEY: TEXT". Always false.
 */
__attribute__((format(printf, 5, 6))) bool dataset_refuse(const struct dataset *d,
	struct fault *fault, int line, const char *key, const char *text, ...);
#define REFUSE(d, fault, key, ...)                                                                 \
	dataset_refuse(d, fault, (d)->config->key##_line, #key, __VA_ARGS__)

/*
 * Fills @d, whose config and stores are set, from files, from a manifest, or with what
 * dataset_save() wrote to @saved. False: @fault; the caller calls dataset_close() in either case.
 */
bool dataset_open(struct dataset *d, FILE *saved, struct fault *fault);
/* The identity of its manifest, a file or an object; 1: it cannot be looked at now. */
uint64_t dataset_manifest_id(const struct dataset *d);
/* Writes a dataset that is not in a store. False: errno. */
bool dataset_save(struct dataset *d, FILE *to);
/* Reads the shards of what dataset_save() wrote, and what is known of them. False: @fault. */
bool dataset_load(struct dataset *d, FILE *saved, struct fault *fault);
/*
 * Samples a dataset whose shards have been described, for tokens of another type than the config's,
 * or not below the stream's vocab. A wrong type is an error, because all tokens of the shard would
 * be wrong. A token that may not be served is only remarked: the stream will stop there. False:
 * @fault.
 */
bool sample_dataset(struct dataset *d, struct fault *fault);

/* ---- remarks ---- */

/* Adds one, unless memory runs out. */
__attribute__((format(printf, 3, 4))) void dataset_remark(
	struct dataset *d, int kind, const char *text, ...);
/* Adds those that follow from the numbers of its tokens and from the names of its shards. */
void dataset_remarks(struct dataset *d);
/* Do both have the same files, under any paths, in the same order, and so the same windows? */
bool dataset_same_files(const struct dataset *a, const struct dataset *b);
/* Adds those about shards that are in a dataset twice, or in two datasets: as the same file if
 * @files, otherwise with the same tokens. @saved: what is not in a store has its remarks already.
 * False: @fault. */
bool catalog_remarks(const struct catalog *c, bool files, bool saved, struct fault *fault);

/* ---- its shards ---- */

/* Keeps what is known of shard @s, a file that is open. The first decides what all have. False:
 * @fault, without the path. */
bool dataset_keep_file(
	struct dataset *d, uint64_t s, const struct shard *shard, struct fault *fault);

#endif
