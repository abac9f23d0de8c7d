/*
 * A dataset on its way from the config to memory. dataset_open() fills it, either from its files
 * (dataset_files.h) or from a manifest (dataset_manifest.h); what both need is here.
 */
#ifndef TOKEND_OPENING_H
#define TOKEND_OPENING_H

#include "daemon/catalog/dataset.h"
#include "daemon/config/refuse.h"
#include "daemon/shard/list.h"

#include <pthread.h>

struct opening {
	const struct config *config;
	const struct config_stream *stream;
	const struct config_dataset *source;
	struct dataset *dataset;
	pthread_mutex_t *lock; /* for what several threads write to *dataset */
	struct fault *fault;
};

/*
 * Fills o->fault as config_refuse() does, about a key of the dataset: "FILE:LINE:
 * streams.NAME.datasets[I].KEY: TEXT", index I. Always false.
 */
__attribute__((format(printf, 4, 5))) bool opening_refuse(
	const struct opening *o, int line, const char *key, const char *text, ...);
bool opening_refuse_memory(const struct opening *o);
/* The same about file @path of the dataset's path, with the text of @cause. If a system call
 * failed, its code and errno stay. */
bool opening_refuse_shard(const struct opening *o, const char *path, const struct fault *cause);
/* What shards are described with. Borrows from the config. */
struct shard_hint opening_hint(const struct opening *o);
/* The dataset's `format:`; *@format is NULL for auto. */
bool opening_format(const struct opening *o, const struct shard_format **format);
/* Allocates what is kept for each shard of @list, which gives its names up to the dataset. */
bool opening_allocate(const struct opening *o, struct shard_list *list);

#endif
