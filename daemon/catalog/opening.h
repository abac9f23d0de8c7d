/* Opening the streams and datasets of a config: for the files of this room. */
#ifndef TOKEND_OPENING_H
#define TOKEND_OPENING_H

#include "daemon/catalog/catalog.h"

struct opening {
	const struct config *config;
	const struct config_stream *stream;
	const struct config_dataset *source;
	struct stores *stores; /* or NULL */
	struct dataset *dataset;
	struct fault *fault;
	FILE *saved; /* of dataset_save(); NULL: shards are opened */
};

/*
 * Reports a fault about a key of the dataset, as config_refuse(): "FILE:LINE:
 * streams.NAME.datasets[I].KEY: TEXT", index I. Always false.
 */
__attribute__((format(printf, 3, 4))) bool opening_refuse(
	const struct opening *o, const char *key, const char *text, ...);
bool opening_refuse_memory(const struct opening *o);

/*
 * Fills *o->dataset, whose `config` is set, from files or from a manifest. On failure returns false
 * and o->fault; the caller calls dataset_close() in either case.
 */
bool dataset_open(const struct opening *o);
/* Writes a dataset that is not in a store. False: errno. */
bool dataset_save(struct dataset *dataset, FILE *to);
/* Fills o->dataset with what dataset_save() wrote to o->saved. False: o->fault. */
bool dataset_from_saved(const struct opening *o);
/*
 * Samples a dataset whose shards have been described, for tokens of another type than the config's,
 * or not below the stream's vocab. A wrong type is an error, because all tokens of the shard would
 * be wrong. A token that may not be served is only recorded in dataset->refused: the stream will
 * stop there, and `tokend --check` fails. False: o->fault.
 */
bool sample_dataset(const struct opening *o);
/* Fills dataset->names, which stays empty if there is no doubt. */
void dataset_doubt_names(struct dataset *dataset);

/* ---- its shards ---- */

/* A hash of the identities of the shard's side files; 0: there are none. */
uint32_t dataset_sides(const struct shard_facts *facts);
/*
 * With loss_mask: true, either all shards of a dataset have a mask, or a list of document bounds,
 * or none has. Returns the kind of which the shard is an exception, and whether it has one; or
 * NULL.
 */
const char *dataset_odd_side(
	const struct dataset *dataset, const struct shard_facts *facts, bool *has);

/* As objects.find(), whose context is the dataset. */
bool dataset_find_object(const void *dataset, const char *url, struct object *object);

#endif
