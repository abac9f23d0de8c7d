/* The streams of a config, with their open datasets and initial cursors. */
#ifndef TOKEND_CATALOG_H
#define TOKEND_CATALOG_H

#include "daemon/catalog/dataset.h"

#include <stdio.h>

struct stream_counts; /* daemon/control/control.h */

struct stream {
	const struct config_stream *config;
	const char *file;	      /* the config's path, for messages */
	uint32_t slot;		      /* its index; its number in engine and reader */
	struct dataset *dataset;      /* [config->datasets] */
	uint32_t token_bytes;	      /* width of a served token: that of the widest dataset */
	struct cursor begin;	      /* the cursor at position 0, with the whole schedule */
	struct stream_counts *counts; /* the daemon's; otherwise NULL */
};

struct catalog {
	const struct config *config;
	struct stream *stream;	 /* [config->streams] */
	struct dataset *dataset; /* [datasets] of all streams, one after another */
	uint32_t datasets;
};

/*
 * Opens all streams of @config, or for tools @only the one that is called so. It and @stores must
 * outlive the catalog; without @stores, datasets in a store are refused. @saved: NULL, or what
 * catalog_save() wrote for the same config in another process of this program; then no local shard
 * is opened. On failure returns NULL and @fault, as config_refuse() fills it. Blocks.
 */
struct catalog *catalog_open(const struct config *config, struct stores *stores, const char *only,
	FILE *saved, struct fault *fault);
/* Writes all datasets that are not in a store. False: errno. */
bool catalog_save(const struct catalog *catalog, FILE *to);
void catalog_free(struct catalog *catalog);
/* The stream called @name. NULL: there is none. */
const struct stream *catalog_stream(const struct catalog *catalog, const char *name);

/*
 * Writes the stream's dataset for each dataset of @cursor to @out[cursor->datasets]. NULL: the
 * config no longer has it, which is possible only for a dataset without units. Call it after
 * cursor_belongs(cursor, &stream->begin).
 */
void stream_map(
	const struct stream *stream, const struct cursor *cursor, const struct dataset **out);

/*
 * Applies the config's schedule and max_epochs to a cursor of this stream. The cursor's datasets
 * may differ from the config's; they are matched by name. A dataset that the config no longer has
 * gets no weight and keeps its limit. A dataset that only the config has must be added to the
 * cursor before it gets weight.
 *
 * The current mix lasts until the first step. If the first step is a ramp that has begun, the ramp
 * starts from the config's weights. Call it after cursor_belongs(). On failure returns false,
 * leaves *cursor unchanged, and fills @fault as config_refuse().
 */
bool stream_schedule(const struct stream *stream, struct cursor *cursor, struct fault *fault);

/*
 * Calls @tell with each remark about the stream, a line: shards that look wrong, the end of its
 * datasets, its schedule. @doubt: trainers are warned, because the tokens may not be the ones that
 * are meant.
 */
typedef void stream_teller(void *context, const struct stream *s, bool doubt, const char *text);
void stream_notes(const struct stream *s, stream_teller *tell, void *context);

#endif
