/* A dataset from its manifest. */
#ifndef TOKEND_DATASET_MANIFEST_H
#define TOKEND_DATASET_MANIFEST_H

#include "daemon/catalog/manifest.h"
#include "daemon/catalog/opening.h"

/*
 * Takes the dataset's shards from its manifest. No shard is looked at, so whether one is plain and
 * where its tokens begin shows when it is read. With loss_mask: true the first shard is described.
 * False: o->fault.
 */
bool dataset_from_manifest(const struct opening *o);
/*
 * The manifest of a dataset that has one, whole, for tools; the caller frees it with
 * manifest_free(). False: @fault, as config_refuse() fills it, or manifest_read() where a line of
 * the manifest is at fault.
 */
bool dataset_manifest(const struct config *config, const struct config_stream *stream,
	const struct config_dataset *source, struct manifest *manifest, struct fault *fault);

#endif
