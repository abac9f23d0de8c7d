/* Opens one stream of a catalog. */
#ifndef TOKEND_STREAM_H
#define TOKEND_STREAM_H

#include "daemon/catalog/catalog.h"

/*
 * Opens the datasets of @source and makes the stream's first cursor. False: one line in @why, which
 * starts "FILE:LINE: "; catalog_free() frees what has been filled.
 */
bool stream_open(struct stream *stream, const struct config_stream *source,
	const struct config *config, char *why, size_t why_bytes);
/* "FILE:LINE: streams.NAME: FIELD: TEXT" into @why, for a fault of a cursor that was made from the
 * config. Always false. */
bool stream_refuse(
	const struct stream *stream, const struct fault *fault, char *why, size_t why_bytes);

#endif
