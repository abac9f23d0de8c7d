/* Opens one stream of a catalog. */
#ifndef TOKEND_STREAM_H
#define TOKEND_STREAM_H

#include "daemon/catalog/catalog.h"

/*
 * Opens the datasets of @source and makes the stream's initial cursor. On failure returns false and
 * @fault, as config_refuse() fills it; catalog_free() frees the stream. @saved: see
 * dataset_saved.h; NULL: shards are opened.
 */
bool stream_open(struct stream *stream, const struct config_stream *source,
	const struct config *config, struct stores *stores, FILE *saved, struct fault *fault);
/*
 * Reports @cause, a fault of a cursor made from the config, as config_refuse(): "FILE:LINE:
 * streams.NAME: FIELD: TEXT". Always false.
 */
bool stream_refuse(const struct stream *stream, const struct fault *cause, struct fault *fault);

#endif
