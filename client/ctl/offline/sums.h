/* Writes the sums of a manifest (daemon/store/sums.h), next to it. */
#ifndef TOKEND_CTL_SUMS_H
#define TOKEND_CTL_SUMS_H

#include "client/ctl/common/progress.h"
#include "daemon/store/store.h"
#include "daemon/store/sums.h"

enum { CTL_SUMS_PIECE = 8 << 20 }; /* the default of `piece:` */

struct ctl_sums;

/* NULL after an error was printed. */
struct ctl_sums *ctl_sums_begin(const char *manifest, uint32_t piece);
/* Adds the next line of the manifest. @sums: of its pieces. */
bool ctl_sums_add(struct ctl_sums *s, uint64_t size, const char *etag, const uint64_t *sums,
	struct fault *fault);
/* Writes the file, or, with @keep false, drops it. Frees @s either way. False after an error was
 * printed. */
bool ctl_sums_end(struct ctl_sums *s, bool keep);

/* A shard's bytes: an object, or an open file. */
struct ctl_sums_source {
	struct stores *stores; /* NULL: @fd */
	struct object object;
	int fd;
	uint64_t size;
	unsigned threads; /* that read it */
	struct ctl_progress *progress;
};

/* The sums of the pieces of a shard, which the caller frees. NULL: @fault. */
uint64_t *ctl_sums_read(const struct ctl_sums_source *source, uint32_t piece, struct fault *fault);
/* Reads the sums next to the manifest @path, as sums_read(). NULL: there are none that belong to
 * it.
 */
uint64_t *ctl_sums_load(const char *path, const struct sums_head *manifest);

#endif
