/*
 * Writes a manifest (daemon/catalog/manifest.h). The file appears complete or not at all.
 */
#ifndef TOKEND_CTL_MANIFEST_H
#define TOKEND_CTL_MANIFEST_H

#include "daemon/shard/shard.h"
#include "proto/fault.h"

struct ctl_manifest;

/* NULL after an error was printed. @path is borrowed. */
struct ctl_manifest *ctl_manifest_begin(const char *path);
/* Adds a shard. @name: relative to the directory of the shards, and sorted after the last one.
 * @size: of the file, in bytes. False: it cannot be listed; the fault has no file name. */
bool ctl_manifest_add(struct ctl_manifest *m, const char *name, const char *format,
	const struct shard_facts *facts, uint64_t size, uint64_t digest, struct fault *fault);
/* Renames the manifest to its path, or, with @keep false, drops it. Frees @m either way. False
 * after an error was printed. */
bool ctl_manifest_end(struct ctl_manifest *m, bool keep);

#endif
