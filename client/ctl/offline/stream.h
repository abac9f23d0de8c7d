/*
 * Opens a stream of a config without a daemon. Errors are printed.
 */
#ifndef TOKEND_CTL_STREAM_H
#define TOKEND_CTL_STREAM_H

#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"

struct ctl_stream {
	struct config *config;
	struct stores *stores; /* NULL: no dataset has a URL */
	struct catalog *catalog;
	const struct stream *stream;
};

/* @config: path of the file. False after an error; nothing is to be closed then. */
bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream);
/* The same, with all other streams of the config: they share the cache, which decides whether a
 * dataset is read in pieces. */
bool ctl_stream_open_all(struct ctl_stream *s, const char *config, const char *stream);
void ctl_stream_close(struct ctl_stream *s);

#endif
