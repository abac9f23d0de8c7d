/*
 * Writes a manifest (daemon/catalog/manifest.h). It appears whole or not at all.
 */
#ifndef TOKEND_CTL_MANIFEST_H
#define TOKEND_CTL_MANIFEST_H

#include "daemon/shard/shard.h"
#include "proto/fault.h"

struct ctl_manifest;

/* NULL after an error was printed. @path is borrowed. */
struct ctl_manifest *ctl_manifest_begin(const char *path);
/* @name: relative to the directory of the shards, and sorted after the one before it. @size: of
 * the file. The fault says why it cannot be listed. */
bool ctl_manifest_add(struct ctl_manifest *m, const char *name, const char *format,
	const struct shard_facts *facts, uint64_t size, uint64_t digest, struct fault *fault);
/* Puts it in its place, or, with @keep false, drops it. False after an error was printed. */
bool ctl_manifest_end(struct ctl_manifest *m, bool keep);

#endif
