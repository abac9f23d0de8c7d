/*
 * The samples of an MDS shard. A sample is a u32 length for each variable column, then the values
 * of all columns. A value is raw, or begins with a few bytes that give its type and shape.
 *
 * If all samples have the same number of tokens, a window is a sample; if their offsets are evenly
 * spaced, none are kept in memory. Otherwise the samples are documents, which are joined.
 */
#ifndef TOKEND_SHARD_MDS_SAMPLES_H
#define TOKEND_SHARD_MDS_SAMPLES_H

#include "daemon/shard/mds_front.h"
#include "daemon/shard/pieces.h"

struct shard_index {
	const struct bytes *b;
	struct mds_layout layout;
	uint32_t samples;
	uint64_t sample_tokens;
	enum shard_type type;
	uint64_t first, stride; /* sample i begins at first + i·stride */
	uint32_t *offsets;	/* [samples + 1]; NULL: evenly spaced */
	bool even; /* the tokens of every sample begin tokens_from bytes after its beginning */
	uint64_t tokens_from;
	bool joined;	      /* samples differ in their number of tokens */
	uint32_t differs;     /* number of the first one that was seen to differ */
	struct pieces pieces; /* of joined samples, after mds_join() */
	uint32_t lead_bytes;  /* > 0: check() compares each sample's first bytes with `lead` */
	uint8_t lead[MDS_LEAD_BYTES]; /* of the first sample; most others have the same */
};

/*
 * Makes the index from the first sample; call mds_read_table() next. @b must outlive it. NULL:
 * @fault.
 */
struct shard_index *mds_index_new(
	const struct bytes *b, const struct mds_front *f, struct fault *fault);
void mds_index_free(struct shard_index *x);
/*
 * Reads the offsets, which must ascend. Keeps them only if they are not evenly spaced. False:
 * @fault.
 */
bool mds_read_table(struct shard_index *x, struct fault *fault);
/*
 * Checks every @step-th sample. Sets x->even if @step is 1 and the tokens of all samples begin at
 * the same distance, and x->joined if one has another number of tokens. False: @fault.
 */
bool mds_look_at_all(struct shard_index *x, uint64_t step, struct fault *fault);
/* The message for x->joined where a window must be a sample. Always false. */
bool mds_refuse_lengths(struct shard_index *x, struct fault *fault);
/* Counts the tokens of joined samples, by their sizes where these tell it. False: @fault. */
bool mds_count_tokens(const struct shard_index *x, uint64_t *tokens, struct fault *fault);
/*
 * Fills x->pieces by the sizes of the samples, without reading them. False if these do not tell, or
 * make another number of tokens than @tokens.
 */
bool mds_join_by_size(struct shard_index *x, uint64_t tokens);
/* Looks at all samples and fills x->pieces. False: @fault. */
bool mds_join(struct shard_index *x, struct fault *fault);
/* As shard_format's extent() and check(). */
uint64_t mds_extent(
	const struct shard_index *x, uint64_t token, uint64_t *byte, struct fault *fault);
bool mds_check(
	const struct shard_index *x, uint64_t token, const uint8_t *lead, struct fault *fault);

#endif
