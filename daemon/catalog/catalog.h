/* The streams of a config: their datasets, open, and the cursors that they begin with. */
#ifndef TOKEND_CATALOG_H
#define TOKEND_CATALOG_H

#include "daemon/catalog/dataset.h"

struct stream {
	const struct config_stream *config;
	const char *file;	 /* the config's, for complaints */
	struct dataset *dataset; /* [config->datasets] */
	uint32_t token_bytes;	 /* the widest of the datasets; all are served in it */
	struct cursor begin;	 /* the cursor at position 0, with the whole schedule */
	void *begin_bytes;	 /* that cursor, encoded: many sessions may ask for it often */
	size_t begin_length;
};

struct catalog {
	const struct config *config;
	struct stream *stream; /* [config->streams] */
};

/* NULL: @fault, as config_refuse() fills it. @config must outlive the
 * catalog. */
struct catalog *catalog_open(const struct config *config, struct fault *fault);
/* The same for a single stream: the others are left empty. For tools that need one. */
struct catalog *catalog_open_stream(
	const struct config *config, const char *stream, struct fault *fault);
void catalog_free(struct catalog *catalog);
const struct stream *catalog_stream(const struct catalog *catalog, const char *name);

/*
 * For each dataset of @cursor the stream's own (NULL: not in the config any more, which only a
 * dataset without units may be).
 * @out has cursor->datasets entries. Call after cursor_belongs(cursor, &stream->begin).
 */
void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out);

#endif
