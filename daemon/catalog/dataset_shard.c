#include "daemon/catalog/opening.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct dataset_identity dataset_identify(const struct stat *st)
{
	return (struct dataset_identity){
		.inode = st->st_ino,
		.mtime_ns =
			(uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec,
		.bytes = (uint64_t)st->st_size,
	};
}

bool dataset_identical(const struct dataset_identity *was, const char *when, const struct stat *st,
	struct fault *fault)
{
	const struct dataset_identity is = dataset_identify(st);
	const struct {
		const char *what;
		uint64_t was, is;
	} facts[] = {
		{"size", was->bytes, is.bytes},
		{"inode", was->inode, is.inode},
		{"mtime (ns)", was->mtime_ns, is.mtime_ns},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		if (facts[i].was != facts[i].is)
			return fault_set(fault, FAULT_CHANGED, "",
				"%s was %" PRIu64 " when %s and is %" PRIu64 " now", facts[i].what,
				facts[i].was, when, facts[i].is);
	return true;
}

bool dataset_same_shard(
	const struct dataset *dataset, uint64_t shard, const struct stat *st, struct fault *fault)
{
	const struct dataset_identity *listed = &dataset->entry[shard].file;

	assert(shard < dataset->table.shards);
	return (dataset->listed && listed->inode == 0) ||
	       dataset_identical(listed, "the shard was listed", st, fault);
}

bool dataset_is_indexed(const struct shard_facts *facts)
{
	return facts->documents != SHARD_UNKNOWN || facts->bounds || facts->sample_tokens > 0;
}

uint32_t dataset_sides(const struct shard_facts *facts)
{
	return facts->index ^ facts->bounds ^ (facts->mask << 16 | facts->mask >> 16);
}

const char *dataset_odd_side(const struct dataset *d, const struct shard_facts *facts, bool *has)
{
	if (!d->hint.loss_mask)
		return NULL;
	*has = facts->mask;
	if (d->masks != *has)
		return "loss mask";
	*has = facts->bounds;
	return d->bounds != *has ? "list of document bounds" : NULL;
}

/* Whether a manifest's shard was not opened before. */
static bool is_new(const struct dataset *d, uint64_t shard)
{
	return d->listed && d->entry[shard].file.inode == 0;
}

/* Whether the shard has the side files that were listed. They are part of its identity. */
static bool same_sides(const struct dataset *d, uint64_t shard, const struct shard_facts *facts,
	struct fault *fault)
{
	bool has;
	const char *odd = dataset_odd_side(d, facts, &has);

	if (odd)
		return fault_set(fault, FAULT_CHANGED, "",
			"had %s %s when it was listed and has %s now", has ? "no" : "its", odd,
			has ? "one" : "none");
	return is_new(d, shard) || dataset_sides(facts) == d->entry[shard].sides ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "its index%s changed after the shard was listed (inode, size or mtime "
		       "differ)",
		       facts->mask ? " or loss mask" : "");
}

/* Of shards without a manifest, only the number of tokens is kept to compare. */
static bool same_facts(const struct dataset *d, uint64_t shard, const struct shard_format *format,
	const struct shard_facts *facts, uint64_t bytes, struct fault *fault)
{
	const struct manifest_shard listed = {d->format, (enum shard_type)d->entry[shard].type,
		d->table.tokens[shard], d->entry[shard].file.bytes, d->sample_tokens,
		d->frame_bytes};
	const struct manifest_shard found = {format, facts->type, facts->tokens, bytes,
		facts->sample_tokens, facts->frame_bytes};
	size_t n;

	if (!d->listed)
		return (facts->tokens == listed.tokens && facts->token_bytes == d->token_bytes) ||
		       fault_set(fault, FAULT_CHANGED, "",
			       "had %" PRIu64 " tokens when the shard was listed and has %" PRIu64
			       " now",
			       listed.tokens, facts->tokens);
	if (manifest_same(&listed, &found, fault))
		return facts->token_bytes == d->token_bytes ||
		       fault_set(fault, FAULT_CHANGED, "dtype",
			       "its tokens of %s are served in %" PRIu32
			       " bytes, and those of the dataset in %" PRIu32,
			       shard_type_name(facts->type), facts->token_bytes, d->token_bytes);
	n = strlen(fault->text);
	if (strcmp(fault->field, "dtype") == 0 && d->hint.has_type && found.type == d->hint.type)
		snprintf(fault->text + n, sizeof(fault->text) - n,
			", as dtype in the config sets it");
	return false;
}

/* Stores what a manifest's shard is, so that it is not compared again. */
static void remember(const struct dataset *d, uint64_t shard, const struct stat *st,
	const struct shard_facts *facts)
{
	struct entry *e = &d->entry[shard];

	if (!d->listed)
		return;
	if (d->objects)
		e->file.inode = 1;
	else
		e->file = dataset_identify(st);
	e->sides = dataset_sides(facts);
	if (facts->plain && facts->data_at < UINT32_MAX)
		e->plain_at = (uint32_t)facts->data_at + 1;
}

/* What the manifest says about a shard in a store. */
static struct shard_facts facts_of(const struct dataset *d, uint64_t shard)
{
	bool plain = dataset_is_plain(d, shard);

	return (struct shard_facts){
		.type = (enum shard_type)d->entry[shard].type,
		.tokens = d->table.tokens[shard],
		.sample_tokens = d->sample_tokens,
		.frame_bytes = d->frame_bytes,
		.plain = plain,
		.data_at = plain ? dataset_data_at(d, shard) : 0,
	};
}

struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, struct fault *fault)
{
	const struct shard_format *format = dataset->format;
	struct shard_hint hint = dataset->hint;
	struct shard_facts listed;
	struct stat st = {.st_size = (off_t)dataset->entry[shard].file.bytes};

	hint.frames = frames;
	if (!dataset->objects && fstat(fd, &st) != 0) {
		fault_errno(fault, errno, "", "%s", strerror(errno));
		return NULL;
	}
	if (dataset->objects) {
		listed = facts_of(dataset, shard);
		hint.listed = &listed;
		if (!hint.has_type) /* otherwise it also says how wide tokens are served */
			hint.type = listed.type;
	} else if (dataset->listed) {
		/* It is recognised again unless the config sets it: any file can be read as flat.
		 */
		format = shard_format(dataset->config->format);
	}
	uint64_t bytes = (uint64_t)st.st_size;

	if (dataset->listed && dataset->entry[shard].file.bytes != bytes) { /* no need to read it */
		same_facts(dataset, shard, dataset->format, &(struct shard_facts){0}, bytes, fault);
		return NULL;
	}
	struct shard *opened = shard_open(format, path, fd, &hint, fault);

	if (!opened)
		return NULL;
	if (!same_facts(dataset, shard, opened->format, &opened->facts, bytes, fault) ||
		!same_sides(dataset, shard, &opened->facts, fault)) {
		shard_close(opened);
		return NULL;
	}
	remember(dataset, shard, &st, &opened->facts);
	return opened;
}
