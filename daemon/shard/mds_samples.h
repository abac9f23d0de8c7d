/*
 * The samples of an MDS shard: a u32 length for each column whose length varies, then all columns'
 * values, one after the other. A value is raw, or comes after a few bytes that give its type and
 * shape.
 *
 * All samples must be of one length. Where they are, their offsets are arithmetic and nothing is
 * kept of them.
 */
#ifndef TOKEND_SHARD_MDS_SAMPLES_H
#define TOKEND_SHARD_MDS_SAMPLES_H

#include "daemon/shard/mds_front.h"

struct shard_index {
	const struct bytes *b;
	struct mds_layout layout;
	uint32_t samples;
	uint64_t sample_tokens;
	enum shard_type type;
	uint64_t first, stride; /* sample i begins at first + i·stride */
	uint32_t *offsets;	/* [samples + 1]; NULL: by arithmetic */
	bool even;		/* each has its tokens as far from its begin: */
	uint64_t tokens_from;
	uint32_t lead_bytes;	      /* > 0: where they are is what check() looks at */
	uint8_t lead[MDS_LEAD_BYTES]; /* of the first sample, and so of most */
};

/* The index, without what only a walk tells. @b must outlive it. NULL: @fault. */
struct shard_index *mds_index_new(
	const struct bytes *b, const struct mds_front *f, struct fault *fault);
void mds_index_free(struct shard_index *x);
/* Reads the offsets: they must ascend, and are kept only if they are not arithmetic. */
bool mds_read_table(struct shard_index *x, struct fault *fault);
/* Checks every @step-th sample. If that is every one, x->even is set where all have their tokens in
 * the same place. */
bool mds_look_at_all(struct shard_index *x, uint64_t step, struct fault *fault);
/* As shard_format's extent() and check() say. */
uint64_t mds_extent(
	const struct shard_index *x, uint64_t token, uint64_t *byte, struct fault *fault);
bool mds_check(
	const struct shard_index *x, uint64_t token, const uint8_t *lead, struct fault *fault);

#endif
