#include "daemon/catalog/dataset_shard.h"

#include "daemon/catalog/manifest.h"
#include "daemon/catalog/sample.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * Whether the shard has the same side files as before: shard_describe() accepts one whose mask or
 * index was removed.
 */
static bool same_annotations(const struct dataset *d, uint64_t shard,
	const struct shard_facts *facts, struct fault *fault)
{
	enum dataset_indexed indexed = d->indexed ? d->indexed[shard] : DATASET_UNKNOWN;
	const struct {
		const char *what;
		bool asked, was, is;
	} annotations[] = {
		{"loss mask", d->hint.loss_mask, d->masks, facts->mask},
		{"list of document bounds", d->hint.loss_mask, d->bounds, facts->bounds},
		{"index of documents", indexed != DATASET_UNKNOWN, indexed == DATASET_INDEXED,
			dataset_is_indexed(facts)},
	};

	for (size_t i = 0; i < sizeof(annotations) / sizeof(annotations[0]); i++)
		if (annotations[i].asked && annotations[i].was != annotations[i].is)
			return fault_set(fault, FAULT_CHANGED, "",
				"had %s %s when it was listed and has %s now",
				annotations[i].was ? "its" : "no", annotations[i].what,
				annotations[i].is ? "one" : "none");
	return true;
}

/* Whether the shard's side files are the ones that were listed. They are part of its identity. */
static bool same_sides(const struct dataset *d, uint64_t shard, const struct shard_facts *facts,
	struct fault *fault)
{
	const char *index = facts->bounds		   ? "list of document bounds"
			    : facts->index || !facts->mask ? "index"
							   : "";

	if ((d->sizes && d->identity[shard].inode == 0) || dataset_sides(facts) == d->sides[shard])
		return true;
	return fault_set(fault, FAULT_CHANGED, "",
		"its %s%s%s changed after the shard was listed (inode, size or mtime differ)",
		index, *index && facts->mask ? " or " : "", facts->mask ? "loss mask" : "");
}

/* Without a manifest, only the number of tokens is kept to compare. */
static bool as_listed(const struct dataset *dataset, uint64_t shard,
	const struct shard_facts *facts, struct fault *fault)
{
	uint64_t tokens = dataset->table.tokens[shard];

	return (facts->tokens == tokens && facts->token_bytes == dataset->token_bytes) ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "had %" PRIu64 " tokens when the shard was listed and has %" PRIu64 " now",
		       tokens, facts->tokens);
}

static bool as_in_manifest(const struct dataset *d, uint64_t shard,
	const struct shard_format *format, const struct shard_facts *facts, const struct stat *st,
	struct fault *fault)
{
	const struct manifest_shard listed = {d->format, (enum shard_type)d->types[shard],
		d->table.tokens[shard], d->sizes[shard], d->sample_tokens, d->frame_bytes};
	const struct manifest_shard found = {format, facts->type, facts->tokens,
		(uint64_t)st->st_size, facts->sample_tokens, facts->frame_bytes};
	size_t n;

	if (manifest_same(&listed, &found, fault))
		return true;
	n = strlen(fault->text);
	if (strcmp(fault->field, "dtype") == 0 && d->hint.has_type && found.type == d->hint.type)
		snprintf(fault->text + n, sizeof(fault->text) - n,
			", as dtype in the config sets it");
	return false;
}

/*
 * With a manifest the format is recognised again unless the config sets it, because any file can be
 * read as flat.
 */
static bool describe_listed(const struct dataset *d, uint64_t shard, const char *path, int fd,
	const struct shard_hint *hint, struct shard_facts *facts, struct fault *fault)
{
	const struct shard_format *format = d->sizes ? shard_format(d->config->format) : d->format;
	struct stat st;

	if (fstat(fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	if (d->sizes && d->sizes[shard] != (uint64_t)st.st_size) /* no need to read it */
		return as_in_manifest(d, shard, d->format, facts, &st, fault);
	format = shard_describe(format, path, fd, hint, facts, fault);
	if (!format)
		return false;
	if (!d->sizes)
		return as_listed(d, shard, facts, fault);
	return as_in_manifest(d, shard, format, facts, &st, fault);
}

/* Stores the identity of a manifest's shard, so that it is not described again. */
static void remember(
	const struct dataset *d, uint64_t shard, int fd, const struct shard_facts *facts)
{
	struct stat st;

	if (!d->sizes || fstat(fd, &st) != 0)
		return;
	d->identity[shard] = dataset_identify(&st);
	dataset_keep_annotations(d, shard, facts);
	if (facts->plain && facts->data_at < UINT32_MAX)
		d->plain_at[shard] = (uint32_t)facts->data_at + 1;
}

struct shard *dataset_open_shard(const struct dataset *dataset, uint64_t shard, const char *path,
	int fd, struct frames *frames, struct fault *fault)
{
	struct shard_hint hint = dataset->hint;
	struct shard_facts facts = {0};
	struct shard *opened;

	hint.frames = frames;
	if (!describe_listed(dataset, shard, path, fd, &hint, &facts, fault) ||
		!same_annotations(dataset, shard, &facts, fault) ||
		!same_sides(dataset, shard, &facts, fault))
		return NULL;
	opened = shard_open(dataset->format, path, fd, &hint, &facts, fault);
	if (!opened)
		return NULL;
	if (!sample_opened(dataset, shard, opened, fault)) {
		shard_close(opened);
		return NULL;
	}
	remember(dataset, shard, fd, &opened->facts);
	return opened;
}
