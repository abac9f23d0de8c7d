#include "client/ctl/offline/inspect_listed.h"

#include "client/ctl/common/error.h"
#include "client/ctl/offline/stores.h"
#include "daemon/catalog/dataset_manifest.h"
#include "daemon/config/url_text.h"
#include "proto/phrases.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct listed *listed_find(const struct listed_all *all, const char *path, int64_t *shard)
{
	struct listed *found = NULL;

	for (unsigned i = 0; i < all->lists; i++) {
		struct listed *l = &all->listed[i];

		assert(l->root);
		size_t n = strlen(l->root);

		n -= l->root[n - 1] == '/';
		bool below = strncmp(path, l->root, n) == 0 && path[n] == '/';
		int64_t number = below ? shard_list_find(&l->list, path + n + 1) : -1;

		if ((number < 0 && !(below && l->unlisted)) || (found && !l->dataset->label_mask))
			continue;
		found = l;
		*shard = number;
		if (l->dataset->label_mask)
			break;
	}
	return found;
}

static bool list_dataset(struct listed_all *all, bool manifests, const struct config_stream *stream,
	const struct config_dataset *dataset)
{
	struct listed *l = &all->listed[all->lists];
	char path[PATH_MAX];
	struct fault fault;

	l->stream = stream;
	l->dataset = dataset;
	if (dataset->manifest && manifests) {
		if (!dataset_manifest(
			    all->config, all->stores, stream, dataset, &l->manifest, &fault)) {
			ctl_fail("%s", fault.text);
			return false;
		}
		l->list = l->manifest.list;
	} else if (url_text_is(dataset->path)) {
		/* Without its slash, as other roots. */
		l->list.root = strndup(dataset->path, strlen(dataset->path) - 1);
		l->unlisted = true;
	} else if (!config_path(all->config, dataset->path, path, sizeof(path))) {
		ctl_fail("%s:%d: path: %s", all->config->path, dataset->path_line,
			strerror(ENAMETOOLONG));
		return false;
	} else if (!shard_list_read(&l->list, path, &fault)) {
		ctl_fail("%s:%d: path: %s", all->config->path, dataset->path_line, fault.text);
		return false;
	}
	all->lists++;
	l->root = url_text_is(dataset->path) ? strdup(l->list.root) : realpath(l->list.root, NULL);
	if (!l->root)
		ctl_fail("%s: %s", l->list.root, strerror(errno));
	return l->root;
}

bool listed_open(struct listed_all *all, const char *path, bool manifests, bool stores)
{
	struct fault fault;
	size_t datasets = 0;

	all->config = path ? config_load(path, &fault) : NULL;
	bool fine = all->config || !path;

	if (fine && (stores || (path && ctl_stores_needed(all->config, NULL)))) {
		all->stores = ctl_stores_open(all->config, &fault);
		fine = all->stores;
	}
	if (!fine)
		ctl_fail("%s", fault.text);
	if (!fine || !path)
		return fine;
	for (uint32_t i = 0; i < all->config->streams; i++)
		datasets += all->config->stream[i].datasets;
	all->listed = calloc(datasets + 1, sizeof(*all->listed));
	if (!all->listed) {
		ctl_fail(PHRASE_MEMORY);
		return false;
	}
	for (uint32_t i = 0; i < all->config->streams; i++)
		for (uint32_t d = 0; d < all->config->stream[i].datasets; d++)
			if (!list_dataset(all, manifests, &all->config->stream[i],
				    &all->config->stream[i].dataset[d]))
				return false;
	return true;
}

void listed_close(struct listed_all *all)
{
	for (unsigned i = 0; i < all->lists; i++) {
		all->listed[i].manifest.types ? manifest_free(&all->listed[i].manifest)
					      : shard_list_free(&all->listed[i].list);
		free(all->listed[i].root);
		free(all->listed[i].first);
	}
	free(all->listed);
	store_close(all->stores);
	config_free(all->config);
}
