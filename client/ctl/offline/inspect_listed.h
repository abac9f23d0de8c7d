/* The datasets of a config and their files: how a file of theirs is to be read. Errors are printed.
 */
#ifndef TOKEND_CTL_INSPECT_LISTED_H
#define TOKEND_CTL_INSPECT_LISTED_H

#include "daemon/catalog/manifest.h"
#include "daemon/config/config.h"
#include "daemon/shard/list.h"

/* The files of one dataset, and how it reads them. */
struct listed {
	const struct config_stream *stream;
	const struct config_dataset *dataset;
	struct shard_list list;	  /* borrowed from the manifest if there is one */
	struct manifest manifest; /* otherwise empty */
	char *root;		  /* without links, to compare paths by */
	char *first;		  /* the first file of it that was inspected, which had: */
	bool mask, bounds;
};

struct listed_all {
	struct config *config; /* NULL: none */
	struct listed *listed;
	unsigned lists;
};

/* Lists the datasets of all streams of the config at @path; the manifests' lists if @manifests. */
bool listed_open(struct listed_all *all, const char *path, bool manifests);
void listed_close(struct listed_all *all);
/* The dataset that contains the file @path, and the shard's number in it; NULL if there is none. If
 * several do, the first that has a label_mask, otherwise the first. */
struct listed *listed_find(const struct listed_all *all, const char *path, int64_t *shard);

#endif
