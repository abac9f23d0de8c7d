#include "daemon/catalog/opening.h"

#include "daemon/catalog/parallel_for.h"

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

static bool same_shard(const struct parallel *p, struct fault *fault)
{
	const struct dataset *d = p->context;
	char path[PATH_MAX + 1];

	dataset_shard_path(d, p->i, path, sizeof(path));
	return same_file(&d->entry[p->i].file, "the shard was listed", path, fault);
}

static bool same_names(
	const struct shard_list *was, const struct shard_list *is, struct fault *fault)
{
	uint64_t s = 0;

	while (s < was->count && s < is->count &&
		strcmp(shard_list_name(was, s), shard_list_name(is, s)) == 0)
		s++;
	return (s == was->count && s == is->count) ||
	       fault_set(fault, FAULT_CHANGED, "",
		       "%s: had %" PRIu64 " shards and has %" PRIu64
		       "; the first that differs is %s",
		       was->root, was->count, is->count,
		       shard_list_name(s < is->count ? is : was, s));
}

bool dataset_current(const struct config *config, const struct dataset *d, struct fault *fault)
{
	const char *of = d->listed ? d->config->manifest : d->config->path;
	char path[PATH_MAX];
	struct shard_list list = {0};
	uint64_t n = d->table.shards;

	if (store_is_url(of) || !config_path(config, of, path, sizeof(path)))
		return true;
	if (d->listed)
		return same_file(&d->manifest, "the manifest was read", path, fault);
	if (!shard_list_read(&list, path, fault))
		return !is_gone(fault->error);
	bool same = same_names(&d->list, &list, fault);

	shard_list_free(&list);
	return same &&
	       parallel_for(n, parallel_reads(n), same_shard, (void *)(uintptr_t)d, fault) == n;
}
