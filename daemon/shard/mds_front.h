/*
 * The beginning of an MDS shard: u32 n, u32 offsets[n + 1], a JSON config.
 */
#ifndef TOKEND_SHARD_MDS_FRONT_H
#define TOKEND_SHARD_MDS_FRONT_H

#include "daemon/shard/mds_columns.h"

enum {
	MDS_LEAD_BYTES = SHARD_LEAD_MOST
}; /* of a sample are read at once: the lengths and the shape, mostly */

struct mds_front {
	uint32_t samples;
	uint32_t first, second, end; /* offsets 0, 1 and samples */
	struct mds_layout layout;
	char *columns; /* as text; to be freed */
	bool has_hash; /* of the compressed file, by an index.json */
	uint64_t hash;
};

/* f->columns is to be freed, also when this returns false. */
bool mds_read_front(const struct bytes *b, const struct shard_hint *hint, struct mds_front *f,
	struct fault *fault);

/*
 * What describes a shard lies at its begin, so a large compressed one need not be decoded whole for
 * that: a source of those bytes, which asks the whole one for others.
 */
struct mds_begin {
	struct bytes bytes;
	const struct bytes *whole;
	uint8_t *data;
	uint64_t n;
};

/* s->data is to be freed. */
void mds_begin_make(struct mds_begin *s, const struct bytes *b);

#endif
