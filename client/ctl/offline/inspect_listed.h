/*
 * The files of a config's datasets, to find how a file is configured. Errors are printed.
 */
#ifndef TOKEND_CTL_INSPECT_LISTED_H
#define TOKEND_CTL_INSPECT_LISTED_H

#include "daemon/catalog/manifest.h"
#include "daemon/config/config.h"
#include "daemon/shard/list.h"

/* A dataset and its files. */
struct listed {
	const struct config_stream *stream;
	const struct config_dataset *dataset;
	struct shard_list list;	  /* borrowed from the manifest if there is one */
	struct manifest manifest; /* otherwise empty */
	char *root;		  /* with links resolved, to compare with paths */
	char *first;		  /* its first file that was inspected; NULL: none yet */
	bool unlisted;		  /* in a store, without a manifest: all below @root */
	bool mask, bounds;	  /* had @first a loss mask, a list of document bounds? */
};

struct listed_all {
	struct config *config; /* NULL: none */
	struct stores *stores; /* NULL: not needed */
	struct listed *listed;
	unsigned lists;
};

/* Lists the files of all datasets of the config at @path. @manifests: of datasets with a manifest,
 * the files that it lists. @path NULL: there is no config. @stores: they are needed. False after an
 * error; listed_close() is needed either way. */
bool listed_open(struct listed_all *all, const char *path, bool manifests, bool stores);
void listed_close(struct listed_all *all);
/* The dataset that contains the file @path, and its number there in *@shard (-1: not known). Of
 * several, the first with a label_mask, otherwise the first. NULL: none. */
struct listed *listed_find(const struct listed_all *all, const char *path, int64_t *shard);

#endif
