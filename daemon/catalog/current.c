#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/list.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>

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

static bool same_shard(const struct dataset *d, uint64_t shard, struct fault *fault)
{
	char path[PATH_MAX + 1];

	dataset_shard_path(d, shard, path, sizeof(path));
	return same_file(&d->entry[shard].file, "the shard was listed", path, fault);
}

static bool same_each(const struct parallel *p, struct fault *fault)
{
	return same_shard(p->context, p->i, fault);
}

static bool same_names(const struct dataset *d, const struct shard_list *list, struct fault *fault)
{
	uint64_t s = 0;

	while (s < d->table.shards && s < list->count &&
		strcmp(dataset_shard_name(d, s), shard_list_name(list, s)) == 0)
		s++;
	if (s == d->table.shards && s == list->count)
		return true;
	return fault_set(fault, FAULT_CHANGED, "",
		"%s: had %" PRIu64 " shards and has %" PRIu64 "; the first that differs is %s",
		d->root, d->table.shards, list->count,
		s < list->count ? shard_list_name(list, s) : dataset_shard_name(d, s));
}

static bool same_files(const struct dataset *d, const char *path, struct fault *fault)
{
	struct shard_list list = {0};

	if (!shard_list_read(&list, path, fault))
		return !is_gone(fault->error);
	bool same = same_names(d, &list, fault);

	shard_list_free(&list);
	if (!same)
		return false;
	uint64_t n = d->table.shards;

	return parallel_for(n, parallel_reads(n), same_each, (void *)(uintptr_t)d, fault) == n;
}

bool dataset_current(const struct config *config, const struct dataset *d, struct fault *fault)
{
	const char *of = d->listed ? d->config->manifest : d->config->path;
	char path[PATH_MAX];

	if (store_is_url(of) || !config_path(config, of, path, sizeof(path)))
		return true;
	return d->listed ? same_file(&d->manifest, "the manifest was read", path, fault)
			 : same_files(d, path, fault);
}
