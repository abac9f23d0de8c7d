/* Whether shards are still what was listed: by name and identity, and by their facts when opened.
 */
#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- identities ---- */

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

	return memcmp(was, &is, sizeof(is)) == 0 ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "changed after %s (inode, size or mtime differs): it had %" PRIu64
		       " bytes and has %" PRIu64,
		       when, was->bytes, is.bytes);
}

/* Whether a manifest's shard was not opened before. */
static bool is_new(const struct dataset *d, uint64_t shard)
{
	return d->listed && d->entry[shard].file.inode == 0;
}

bool dataset_same_shard(
	const struct dataset *d, uint64_t shard, const struct stat *st, struct fault *fault)
{
	assert(shard < d->table.shards);
	return is_new(d, shard) ||
	       dataset_identical(&d->entry[shard].file, "the shard was listed", st, fault);
}

/* ---- all shards ---- */

static bool is_gone(int error)
{
	return error == ENOENT || error == ENOTDIR;
}

static bool same_file(
	const struct dataset_identity *was, const char *when, const char *path, struct fault *fault)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return !is_gone(errno) ||
		       fault_set(fault, FAULT_CHANGED, "", "%s: %s", path, strerror(errno));
	return dataset_identical(was, when, &st, fault) || fault_prefix(fault, "%s: ", path);
}

struct lists {
	const struct dataset *was;
	const struct shard_list *is;
};

static bool same_shard(const struct parallel *p, struct fault *fault)
{
	const struct lists *lists = p->context;
	const struct dataset *d = lists->was;
	const struct shard_list *was = &d->list, *is = lists->is;
	char path[PATH_MAX + 1];

	if (p->i >= was->count || p->i >= is->count ||
		strcmp(shard_list_name(was, p->i), shard_list_name(is, p->i)) != 0)
		return fault_set(fault, FAULT_CHANGED, "",
			"%s: had %" PRIu64 " shards and has %" PRIu64
			"; the first that differs is %s",
			was->root, was->count, is->count,
			shard_list_name(p->i < is->count ? is : was, p->i));
	shard_list_path(&d->list, p->i, path, sizeof(path));
	return same_file(&d->entry[p->i].file, "the shard was listed", path, fault);
}

bool dataset_current(const struct dataset *d, struct fault *fault)
{
	const char *of = d->listed ? d->config->manifest : d->config->path;
	char path[PATH_MAX];
	struct shard_list list = {0};
	struct lists lists = {d, &list};

	if (url_text_is(of) || !config_path(d->file, of, path, sizeof(path)))
		return true;
	if (d->listed)
		return same_file(&d->manifest, "the manifest was read", path, fault);
	if (!shard_list_read(&list, path, fault))
		return !is_gone(fault->error);
	uint64_t n = list.count > d->list.count ? list.count : d->list.count;
	bool same = parallel_for(n, parallel_reads(n), same_shard, &lists, fault) == n;

	shard_list_free(&list);
	return same;
}

/* ---- side files ---- */

uint32_t dataset_sides(const struct shard_facts *facts)
{
	return facts->index ^ facts->bounds ^ (facts->mask << 16 | facts->mask >> 16);
}

bool dataset_alike(const struct dataset *d, const struct shard_facts *facts, struct fault *fault)
{
	bool mask = facts->mask, bounds = facts->bounds, odd = d->masks != mask,
	     has = odd ? mask : bounds;

	return !d->hint.loss_mask || (!odd && d->bounds == bounds) ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "has %s %s, but the first shard, %s, has %s; " PHRASE_ALL_OR_NONE,
		       has ? "a" : "no", odd ? "loss mask" : "list of document bounds",
		       shard_list_name(&d->list, 0), has ? "none" : "one");
}

/* ---- facts ---- */

bool dataset_agrees(const struct dataset *d, uint64_t shard, const struct shard_format *format,
	const struct shard_facts *f, uint64_t size, struct fault *fault)
{
	const struct entry *e = &d->entry[shard];
	/* Samples are joined if those of another shard are shorter or longer than a window. */
	bool joined = d->format->mixes_rows && d->sample_tokens == 0;
	const struct {
		const char *field, *names[2]; /* both or none */
		uint64_t listed, found;
	} facts[] = {
		{"size", {NULL}, e->file.bytes, size},
		{"format", {d->format->name, format->name}, 0, d->format != format},
		{"dtype", {shard_type_name((enum shard_type)e->type), shard_type_name(f->type)},
			e->type, f->type},
		{"tokens", {NULL}, d->table.tokens[shard], f->tokens},
		{"sample_tokens", {NULL}, d->sample_tokens, joined ? 0 : f->sample_tokens},
		{"the largest frame_bytes", {NULL}, d->frame_bytes,
			f->frame_bytes > d->frame_bytes ? f->frame_bytes : d->frame_bytes},
	};

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
		char was[24], is[24];

		snprintf(was, sizeof(was), "%" PRIu64, facts[i].listed);
		snprintf(is, sizeof(is), "%" PRIu64, facts[i].found);
		if (facts[i].listed != facts[i].found)
			return fault_set(fault, FAULT_CHANGED, "", "%s is %s %s and %s in the file",
				facts[i].field, facts[i].names[0] ? facts[i].names[0] : was,
				d->listed ? "in the manifest" : "as listed",
				facts[i].names[1] ? facts[i].names[1] : is);
	}
	return true;
}

struct shard *dataset_open_shard(const struct dataset *d, uint64_t shard, const char *path, int fd,
	struct frames *frames, struct fault *fault)
{
	struct entry *e = &d->entry[shard];
	/* A manifest's shard is recognised again unless the config sets its format: any file can be
	 * read as flat. */
	const struct shard_format *format = d->listed ? shard_format(d->config->format) : d->format;
	struct shard_hint hint = d->hint;
	struct stat st = {.st_ino = 1, .st_size = (off_t)e->file.bytes}; /* of an object */

	hint.frames = frames;
	if (d->listed && !hint.has_type) /* otherwise it also says how wide tokens are served */
		hint.type = (enum shard_type)e->type;
	if (!d->bucket && fstat(fd, &st) != 0) {
		fault_errno(fault, errno, "", "%s", strerror(errno));
		return NULL;
	}
	if ((uint64_t)st.st_size != e->file.bytes) { /* no need to read it */
		dataset_agrees(
			d, shard, d->format, &(struct shard_facts){0}, (uint64_t)st.st_size, fault);
		return NULL;
	}
	struct shard *opened = shard_open(format, path, fd, &hint, fault);

	if (!opened)
		return NULL;
	const struct shard_facts *facts = &opened->facts;
	bool same = dataset_agrees(d, shard, opened->format, facts, (uint64_t)st.st_size, fault);

	if (same && facts->token_bytes != d->token_bytes)
		same = fault_set(fault, FAULT_CHANGED, "dtype",
			"its tokens of %s are served in %" PRIu32
			" bytes, and those of the dataset in %" PRIu32,
			shard_type_name(facts->type), facts->token_bytes, d->token_bytes);
	else if (same && !is_new(d, shard) && dataset_sides(facts) != e->sides)
		same = fault_set(fault, FAULT_CHANGED, "",
			"its side files (index, document bounds, loss mask) changed after the "
			"shard was listed: one was added, removed or replaced");
	if (!same || !dataset_alike(d, facts, fault)) {
		shard_close(opened);
		return NULL;
	}
	if (d->listed) { /* it is not compared again */
		e->file = dataset_identify(&st);
		e->sides = dataset_sides(facts);
		if (facts->plain && facts->data_at < UINT32_MAX)
			e->plain_at = (uint32_t)facts->data_at + 1;
	}
	return opened;
}
