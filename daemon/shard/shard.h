/*
 * Shard formats. One file a format: it recognises its files, describes them from their own headers, and says
 * where a token lies. No other file knows anything of a format; a new one adds a file and a line in shard.c's
 * table.
 *
 * Whatever a header claims is checked against the size of the file before it is believed. Shards are read,
 * never mapped.
 */
#ifndef TOKEND_SHARD_H
#define TOKEND_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define SHARD_UNKNOWN UINT64_MAX

struct shard_hint {
	uint32_t token_bytes; /* what the config says of files that do not say themselves: 2 or 4 */
};

struct shard {
	uint64_t tokens;
	uint64_t documents; /* SHARD_UNKNOWN where the format keeps no index */
	uint64_t data_at;   /* byte offset of token 0 */
	uint32_t token_bytes;
};

struct shard_format {
	const char *name; /* as in the config's `format:` */
	/* Does @path look like one of ours? Needs no I/O beyond @fd's first bytes. */
	bool (*recognise)(const char *path, int fd, const struct stat *st);
	/* False: one line in @why (field, value, limit), without the path. */
	bool (*describe)(const char *path, int fd, const struct stat *st, const struct shard_hint *hint,
		struct shard *shard, char *why, size_t why_bytes);
};

/* The format called @name, or NULL. "auto" is none: see shard_recognise(). */
const struct shard_format *shard_format(const char *name);
/* "flat, …": all names, for an error text. */
const char *shard_format_names(void);
/* The format of a file, or NULL if none recognises it. */
const struct shard_format *shard_recognise(const char *path, int fd, const struct stat *st);
/* What kind of shard @path seems to be that this version cannot read ("an llm.c file", ...), or NULL. */
const char *shard_foreign(const char *path, int fd, const struct stat *st);
/*
 * Recognises (@format NULL) or takes @format's word, and describes. Returns the format, or NULL with one line
 * in @why that says what to do, without the path.
 */
const struct shard_format *shard_describe(const struct shard_format *format, const char *path, int fd,
	const struct stat *st, const struct shard_hint *hint, struct shard *shard, char *why,
	size_t why_bytes);

extern const struct shard_format shard_flat;

#endif
