/*
 * The beginning of an MDS shard: u32 n, u32 offsets[n + 1], a JSON config.
 */
#ifndef TOKEND_SHARD_MDS_FRONT_H
#define TOKEND_SHARD_MDS_FRONT_H

#include "daemon/shard/mds_columns.h"

enum {
	MDS_LEAD_BYTES = SHARD_LEAD_MOST
}; /* bytes of a sample that are read at once; usually enough for the lengths and the shape */

struct mds_front {
	uint32_t samples;
	uint32_t first, second, end; /* offsets 0, 1 and samples */
	struct mds_layout layout;
	char *columns; /* mds_columns_text(); the caller frees it */
	bool has_hash; /* an index.json has the hash of the compressed file */
	uint64_t hash;
	uint64_t window_tokens; /* of the hint */
	bool listed_differ;	/* by index.json, its shards have samples of different sizes */
};

/*
 * Reads and checks the beginning of a shard. The caller frees f->columns, after a failure too.
 * False: @fault.
 */
bool mds_read_front(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault);

/*
 * A source that has the first bytes of @whole in memory, and reads others from it. A shard is
 * described by its first bytes, so a large compressed one need not be decoded as a whole.
 */
struct mds_begin {
	struct bytes bytes;
	const struct bytes *whole;
	uint8_t *data;
	uint64_t n;
};

/* Initialises @s; the caller frees s->data. */
void mds_begin_make(struct mds_begin *s, const struct bytes *b);

#endif
