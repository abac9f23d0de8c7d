/*
 * The table of formats: the only place that knows them all.
 *
 * A new format is one file (recognise() and describe(); open(), close(), extent() and document() if
 * its tokens do not lie in a row or it knows its documents), its declaration at the end of
 * format.h, and one line in formats.c's table, whose order is that in which they are asked.
 * Compression, companions, widths, the config and what inspect and pack read follow; pack_format.c
 * has the kinds that pack writes. It is named in README.md and config/tokend.yaml. For its tests
 * copy what llmc has (`git grep llmc tests`).
 */
#ifndef TOKEND_SHARD_FORMATS_H
#define TOKEND_SHARD_FORMATS_H

#include "daemon/shard/format.h"

/* The format called @name, or NULL. "auto" is none. */
const struct shard_format *shard_format(const char *name);
/* Writes "flat, npy, …" into @to, for an error text, and returns it. */
enum { SHARD_NAMES_BYTES = 128 };
const char *shard_format_names(char *to, size_t to_bytes);
/* The format of an open file. NULL: none; @fault says what to do, without the path. */
const struct shard_format *shard_recognise(const struct bytes *b, struct fault *fault);
/*
 * What @path is next to shards, if it is a companion of any format; NULL: it is none. Endings may
 * be alike, so there may be several:
 * *@next goes on from one to the next; begin with 0.
 */
const struct shard_companion *shard_companion(const char *path, unsigned *next);

#endif
