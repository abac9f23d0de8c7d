/* Opens a dataset from its manifest. */
#ifndef TOKEND_DATASET_MANIFEST_H
#define TOKEND_DATASET_MANIFEST_H

#include "daemon/catalog/manifest.h"
#include "daemon/catalog/opening.h"

/*
 * Takes the dataset's shards from its manifest, without reading any, except that loss_mask: true
 * describes the first one. Whether a shard is plain, and the offset of its tokens, is found when it
 * is opened. False: o->fault.
 */
bool dataset_from_manifest(const struct opening *o);
/*
 * Reads the manifest of a dataset that has one, for tools. The caller frees it with
 * manifest_free(). False: @fault, as manifest_read() fills it for a line of the manifest, otherwise
 * as config_refuse().
 */
bool dataset_manifest(const struct config *config, struct stores *stores,
	const struct config_stream *stream, const struct config_dataset *source,
	struct manifest *manifest, struct fault *fault);

#endif
