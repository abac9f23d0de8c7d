/*
 * Writes a manifest (daemon/catalog/manifest.h). The file appears complete or not at all.
 */
#ifndef TOKEND_CTL_MANIFEST_H
#define TOKEND_CTL_MANIFEST_H

#include "client/ctl/offline/listing.h"
#include "daemon/shard/shard.h"
#include "proto/fault.h"

#include <jansson.h>

struct ctl_manifest;

/*
 * @sums_piece > 0: it gets sums of pieces of so many bytes (daemon/store/sums.h). NULL after an
 * error was printed. @path is borrowed.
 */
struct ctl_manifest *ctl_manifest_begin(const char *path, uint32_t sums_piece);
struct ctl_manifest_line {
	const char *name; /* relative to the directory of the shards, and sorted after the last */
	const char *format;
	const struct shard_facts *facts;
	uint64_t size; /* of the file, in bytes */
	bool has_digest;
	uint64_t digest;
	const char *etag;		   /* of an object; otherwise NULL */
	const char *path;		   /* of a file, to find its side files; or NULL */
	const struct ctl_listing *listing; /* it has the side files of an object; or NULL */
	uint64_t shard;			   /* its number in the listing */
	const uint64_t *sums;		   /* of its pieces; or NULL */
};

/* False: it cannot be listed; the fault has no file name. */
bool ctl_manifest_add(
	struct ctl_manifest *m, const struct ctl_manifest_line *line, struct fault *fault);
/*
 * Adds a line of another manifest, with the line's etag, side files and sums. @from: its object,
 * of which the members etag and side are dropped.
 */
bool ctl_manifest_copy(struct ctl_manifest *m, json_t *from, const struct ctl_manifest_line *line,
	struct fault *fault);
/* Renames the manifest to its path, or, with @keep false, drops it. Frees @m either way. False
 * after an error was printed. */
bool ctl_manifest_end(struct ctl_manifest *m, bool keep);

#endif
