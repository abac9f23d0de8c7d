/*
 * The shared part of opening a dataset from its files (dataset_files.h) and from a manifest
 * (dataset_manifest.h).
 */
#ifndef TOKEND_OPENING_H
#define TOKEND_OPENING_H

#include "daemon/catalog/dataset.h"
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
	FILE *saved; /* see dataset_saved.h; NULL: shards are opened */
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

#endif
