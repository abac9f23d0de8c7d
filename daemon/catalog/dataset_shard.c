#include "daemon/catalog/opening.h"

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
	enum dataset_indexed indexed = d->entry[shard].indexed;
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

	if ((d->listed && d->entry[shard].file.inode == 0) ||
		dataset_sides(facts) == d->entry[shard].sides)
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
	const struct shard_format *format, const struct shard_facts *facts, uint64_t bytes,
	struct fault *fault)
{
	const struct manifest_shard listed = {d->format, (enum shard_type)d->entry[shard].type,
		d->table.tokens[shard], d->entry[shard].file.bytes, d->sample_tokens,
		d->frame_bytes};
	const struct manifest_shard found = {format, facts->type, facts->tokens, bytes,
		facts->sample_tokens, facts->frame_bytes};
	size_t n;

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

static bool bytes_of(
	const struct dataset *d, uint64_t shard, int fd, uint64_t *bytes, struct fault *fault)
{
	struct stat st;

	if (!d->objects && fstat(fd, &st) != 0)
		return fault_errno(fault, errno, "", "%s", strerror(errno));
	*bytes = d->objects ? d->entry[shard].file.bytes : (uint64_t)st.st_size;
	return true;
}

/* Whether the shard is the one that was listed. */
static bool same_shard(const struct dataset *d, uint64_t s, const struct shard *shard,
	uint64_t bytes, struct fault *fault)
{
	const struct shard_facts *facts = &shard->facts;

	return (d->listed ? as_in_manifest(d, s, shard->format, facts, bytes, fault)
			  : as_listed(d, s, facts, fault)) &&
	       same_annotations(d, s, facts, fault) && same_sides(d, s, facts, fault);
}

/* Stores the identity of a manifest's shard, so that it is not described again. */
static void remember(
	const struct dataset *d, uint64_t shard, int fd, const struct shard_facts *facts)
{
	struct entry *e = &d->entry[shard];
	struct stat st;

	if (!d->listed || (!d->objects && fstat(fd, &st) != 0))
		return;
	if (d->objects)
		e->file.inode = 1;
	else
		e->file = dataset_identify(&st);
	dataset_keep_annotations(d, shard, facts);
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
	uint64_t bytes;

	hint.frames = frames;
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
	if (!bytes_of(dataset, shard, fd, &bytes, fault))
		return NULL;
	if (dataset->listed && dataset->entry[shard].file.bytes != bytes) { /* no need to read it */
		as_in_manifest(
			dataset, shard, dataset->format, &(struct shard_facts){0}, bytes, fault);
		return NULL;
	}
	struct shard *opened = shard_open(format, path, fd, &hint, fault);

	if (opened && !same_shard(dataset, shard, opened, bytes, fault)) {
		shard_close(opened);
		return NULL;
	}
	if (opened)
		remember(dataset, shard, fd, &opened->facts);
	return opened;
}
