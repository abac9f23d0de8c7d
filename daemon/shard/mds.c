/*
 * Mosaic's MDS: u32 n, u32 offsets[n + 1], a JSON config, then n samples. If all samples have the
 * same length, each is a training sequence, so a window is a sample. Otherwise they are documents,
 * which are joined.
 */
#include "daemon/shard/mds_index.h"
#include "daemon/shard/mds_samples.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	SPREAD = 16,	 /* samples that are checked to describe a shard with uneven offsets */
	SMALL = 1 << 20, /* bytes; all samples of smaller shards are checked when they are opened */
};

/* Compressions of Mosaic's writer that are not supported. */
static const char *const packed[] = {".mds.br", ".mds.bz2", ".mds.gz", ".mds.snappy"};

static bool mds_recognise(const struct bytes *b)
{
	for (unsigned i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
		if (bytes_ends_in(b->path, packed[i]))
			return true;
	return bytes_ending(b->path, ".mds");
}

static bool refuse_packed(const struct bytes *b, struct fault *fault)
{
	for (unsigned i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
		if (bytes_ends_in(b->path, packed[i]))
			return fault_set(fault, FAULT_DATA, "",
				"is compressed as %s, which is not supported; decompress it, or "
				"use zstd (index.json may stay)",
				packed[i] + 4);
	return true;
}

/*
 * Sets x->joined if the samples differ in length. If only the column of tokens can vary, the size
 * of the shard is enough; otherwise checks the offsets and a few samples.
 */
static bool check_spread(struct shard_index *x, const struct mds_front *f, struct fault *fault)
{
	bool only = x->layout.variable <= 1;

	if (only && f->end - x->first == x->samples * x->stride)
		return true;
	if (!mds_read_table(x, fault))
		return false;
	return mds_look_at_all(x, only ? 1 : x->samples / SPREAD + 1, fault);
}

static bool check_window(
	const struct shard_index *x, const struct shard_hint *hint, struct fault *fault)
{
	return hint->window_tokens == 0 || hint->window_tokens == x->sample_tokens ||
	       fault_set(fault, FAULT_DATA, "",
		       "its samples have %" PRIu64
		       " tokens each, and a window is a sample; seq_len + extra is %" PRIu64
		       ": set seq_len: %" PRIu64 " and extra: 0",
		       x->sample_tokens, hint->window_tokens, x->sample_tokens);
}

/*
 * Samples of the same length may be documents too: a small shard's are by chance. Its index tells,
 * if the samples cannot be windows.
 */
static bool joined_by_index(
	const struct mds_front *f, const struct shard_hint *hint, uint64_t sample_tokens)
{
	return f->listed_differ && hint->window_tokens != 0 && hint->window_tokens != sample_tokens;
}

/* Finds out whether the samples are joined, and the number of their tokens. */
static bool judge(struct shard_index *x, const struct mds_front *f, const struct shard_hint *hint,
	uint64_t *tokens, struct fault *fault)
{
	if (hint->listed) {
		x->joined = hint->listed->sample_tokens == 0;
		*tokens = hint->listed->tokens;
		return true;
	}
	if (x->sample_tokens == 0) /* a document without tokens */
		x->joined = mds_read_table(x, fault);
	if (x->sample_tokens == 0 ? !x->joined : !check_spread(x, f, fault))
		return false;
	if (x->joined)
		return mds_count_tokens(x, tokens, fault);
	x->joined = joined_by_index(f, hint, x->sample_tokens);
	return x->joined || check_window(x, hint, fault);
}

static bool mds_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct mds_front f = {.columns = NULL};
	struct mds_begin front = {.data = NULL};
	struct shard_index *x = NULL;
	uint64_t tokens = 0;
	bool fine = refuse_packed(b, fault);

	if (fine)
		mds_begin_make(&front, b);
	fine = fine && mds_read_front(&front.bytes, hint, &f, fault) &&
	       mds_check_listed(b, hint, &f, fault);
	x = fine ? mds_index_new(&front.bytes, &f, fault) : NULL;
	fine = x && judge(x, &f, hint, &tokens, fault);
	if (fine) {
		facts->type = x->type;
		snprintf(facts->column, sizeof(facts->column), "%s", x->layout.name);
		facts->sample_tokens = x->joined ? 0 : x->sample_tokens;
		facts->documents = x->joined ? x->samples : SHARD_UNKNOWN;
		facts->tokens =
			tokens ? tokens : x->samples * x->sample_tokens; /* no overflow: the file is
									    under 4 GiB */
		facts->has_hash = f.has_hash && !hint->listed;
		facts->hash = f.hash;
	}
	if (x)
		mds_index_free(x);
	free(f.columns);
	free(front.data);
	return fine;
}

/* The samples of a shard that describe() found to be documents. */
static bool open_joined(struct shard_index *x, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	if (!mds_read_table(x, fault))
		return false;
	if (!(hint->listed && mds_join_by_size(x, facts->tokens)) && !mds_join(x, fault))
		return false;
	facts->index_bytes = sizeof(*x) + pieces_bytes(&x->pieces);
	free(x->offsets);
	x->offsets = NULL;
	return (pieces_tokens(&x->pieces) == facts->tokens && x->type == facts->type) ||
	       fault_set(fault, FAULT_DATA, "",
		       "its samples have %" PRIu64 " tokens of %s; by their sizes %" PRIu64
		       " of %s: it is damaged, or changed while it was being opened",
		       pieces_tokens(&x->pieces), shard_type_name(x->type), facts->tokens,
		       shard_type_name(facts->type));
}

static uint64_t mds_document(const struct shard_index *x, uint64_t token, struct fault *fault)
{
	(void)fault;
	return pieces_document(&x->pieces, token);
}

static struct shard_index *mds_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct mds_front f;
	struct shard_index *x = NULL;

	f.columns = NULL;
	if ((!facts->has_hash || mds_check_hash(b, facts->hash, fault)) &&
		mds_read_front(b, hint, &f, fault))
		x = mds_index_new(b, &f, fault);
	free(f.columns);
	if (!x)
		return NULL;
	if (facts->sample_tokens == 0) {
		if (open_joined(x, hint, facts, fault))
			return x;
		mds_index_free(x);
		return NULL;
	}
	bool cheap = b->plain ? b->size <= SMALL : b->frames <= 1;

	if (x->samples * x->sample_tokens != facts->tokens || x->type != facts->type) {
		fault_set(fault, FAULT_DATA, "", "changed while it was being opened");
	} else if (mds_read_table(x, fault)) {
		bool known = hint->listed || (!x->offsets && (x->even || !cheap));

		if (known && !x->offsets && !x->even && x->layout.column == 0 &&
			x->layout.variable == 1 && x->tokens_from <= MDS_LEAD_BYTES)
			facts->lead_bytes = x->lead_bytes = (uint32_t)x->tokens_from;
		if ((known || mds_look_at_all(x, 1, fault)) &&
			(!x->joined || mds_refuse_lengths(x, fault))) {
			facts->looks = !x->even && x->lead_bytes == 0;
			facts->index_bytes =
				sizeof(*x) +
				(x->offsets ? ((uint64_t)x->samples + 1) * sizeof(*x->offsets) : 0);
			return x;
		}
	}
	mds_index_free(x);
	return NULL;
}

/* If a shard is there both raw and compressed, the raw file is served. */
static const struct shard_companion mds_companions[] = {
	{.ending = "/index.json", .shard = "*.mds", .kind = "a Mosaic index by its name"},
	{.ending = "/index.json", .shard = "*.mds.br", .kind = "a Mosaic index by its name"},
	{.ending = "/index.json", .shard = "*.mds.bz2", .kind = "a Mosaic index by its name"},
	{.ending = "/index.json", .shard = "*.mds.gz", .kind = "a Mosaic index by its name"},
	{.ending = "/index.json", .shard = "*.mds.snappy", .kind = "a Mosaic index by its name"},
	{.ending = ".mds.zstd", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.zst", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.br", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.bz2", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.gz", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{.ending = ".mds.snappy", .shard = ".mds", .kind = "a compressed shard", .alone = true},
	{0},
};

const struct shard_format shard_mds = {
	.name = "mds",
	.recognise = mds_recognise,
	.describe = mds_describe,
	.companions = mds_companions,
	.open = mds_open,
	.close = mds_index_free,
	.extent = mds_extent,
	.check = mds_check,
	.document = mds_document,
};
