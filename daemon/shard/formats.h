/*
 * The table of formats: the only place that lists them all.
 *
 * To add a format:
 *
 * 1. Write one file with recognise() and scan(). If the format keeps documents, or tokens are not
 *    contiguous, it is `indexed`, and scan() adds spans to a map.
 * 2. Declare it at the end of format.h and add a line to the table in formats.c, whose order is the
 *    one in which formats are tried.
 * 3. Name it in daemon/shard/README.md and config/tokend.yaml.
 * 4. Copy llmc's tests (`git grep llmc tests`).
 *
 * Compression, widths, the config, `inspect` and the input of `pack` then work. pack_format.c
 * lists the formats that `pack` writes.
 */
#ifndef TOKEND_SHARD_FORMATS_H
#define TOKEND_SHARD_FORMATS_H

#include "daemon/shard/format.h"

/* The format called @name, or NULL. "auto" is not a format. */
const struct shard_format *shard_format(const char *name);
/* Writes the names of all formats, "flat, npy, …", to @to and returns it. */
enum { SHARD_NAMES_BYTES = 128 };
const char *shard_format_names(char *to, size_t to_bytes);
/* The format of an open file. On failure returns NULL and @fault, without the path. */
const struct shard_format *shard_recognise(const struct bytes *b, struct fault *fault);
/* Whether a fault says that a file is not a shard. It names no remedy: the caller knows
 * whether the file was named alone (PHRASE_NOT_SHARD), or is one among shards. */
#define SHARD_FORMAT_FIELD "format"
bool shard_is_unknown(const struct fault *fault);
/* Of those, that its content is something else, so that `format: flat` does not help. */
bool shard_is_foreign(const struct fault *fault);
/*
 * The kind of side file that @path is, by its name; NULL: it is not one. A name may match several
 * kinds: start with *@next = 0 and call again for the next one.
 */
const struct shard_companion *shard_companion(const char *path, unsigned *next);

#endif
