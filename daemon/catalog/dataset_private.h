/* What opening a dataset shares with streams, which ask for it, and with what is opened later.
 * Private to daemon/. */
#ifndef TOKEND_DATASET_PRIVATE_H
#define TOKEND_DATASET_PRIVATE_H

#include "daemon/catalog/dataset.h"

/* One dataset on its way from the config to memory, with what an error needs. */
struct opening {
	const struct config *config;
	const struct config_stream *stream;
	const struct config_dataset *source;
	struct dataset *dataset;
	char *why;
	size_t why_bytes;
};

/*
 * Fills *o->dataset, whose config is set, from files or from a manifest. False: one line in o->why,
 * which starts "FILE:LINE: "; what is filled is freed by dataset_close().
 */
bool dataset_open(const struct opening *o);
void dataset_close(struct dataset *dataset);
/* "FILE:LINE: streams.NAME.datasets[I].FIELD: TEXT" into o->why; false. */
__attribute__((format(printf, 4, 5))) bool dataset_refuse(
	const struct opening *o, int line, const char *field, const char *text, ...);

struct dataset_identity dataset_identify(const struct stat *st);
bool dataset_is_indexed(const struct shard_facts *facts);
/* Keeps what lies beside the shard, and whether it is indexed, where somebody asks for documents.
 */
void dataset_keep_annotations(
	const struct dataset *d, uint64_t shard, const struct shard_facts *facts);

#endif
