/* Threads read shards ahead of the one that is reported next. */
#include "client/ctl/offline/inspect_ahead.h"

#include "client/ctl/offline/stores.h"
#include "daemon/catalog/parallel_for.h"
#include "daemon/shard/cache.h"
#include "proto/phrases.h"

#include <stdlib.h>
#include <string.h>

/* What a thread read. */
struct slot {
	struct inspected file;
	char path[PATH_MAX];
};

struct ahead {
	struct inspect *in;
	const struct ctl_listing *listing;
	struct slot slot[CTL_GETS];
};

static bool inspect_each(const struct parallel *p, struct fault *fault)
{
	struct ahead *all = p->context;
	struct inspect *in = all->in;
	const struct ctl_listing *l = all->listing;
	struct slot *slot = &all->slot[p->thread];
	const char *name = shard_list_name(&l->list, l->file + p->i);

	memset(&slot->file, 0, sizeof(slot->file));
	shard_list_path(&l->list, l->file + p->i, slot->path, sizeof(slot->path));
	inspect_begin(in, &slot->file, slot->path, slot->path, name);
	inspect_read(in, &slot->file);
	if (!in->deep && in->sums_piece == 0)
		ctl_progress_add(&in->progress, 1);
	if (!parallel_turn(p)) {
		inspect_close(&slot->file);
		return true;
	}
	inspect_end(in, &slot->file);
	if (in->out.failed) /* it was reported */
		return fault_set(fault, FAULT_IO, "", "stdout");
	parallel_pass(p);
	return true;
}

static void begin_progress(struct inspect *in, const struct ctl_listing *l, const char *url)
{
	unsigned passes = in->deep + (in->sums_piece > 0);
	uint64_t bytes = 0;

	for (uint64_t i = 0; passes > 0 && i < l->files; i++)
		bytes += passes * ctl_listing_object(l, l->file + i).size;
	if (passes > 0)
		ctl_progress_begin(&in->progress, url, bytes);
	else
		ctl_progress_count(&in->progress, url, "shards", l->files);
}

void inspect_ahead(struct inspect *in, const struct ctl_listing *l, const char *url)
{
	uint64_t threads = l->files < CTL_GETS ? l->files : CTL_GETS;
	struct ahead *all = calloc(1, sizeof(*all));
	struct fault fault;

	cache_free(in->cache);
	in->cache = cache_new(l->list.root);
	if (all && in->cache) {
		all->in = in;
		all->listing = l;
		in->listing = l;
		in->threads = (unsigned)(CTL_GETS / threads);
		in->alone = l->files == 1;
		begin_progress(in, l, url);
		parallel_for(l->files, (unsigned)threads, inspect_each, all, &fault);
		ctl_progress_end(&in->progress);
		in->listing = NULL;
		in->threads = 0;
	} else {
		inspect_unread(in, url, PHRASE_MEMORY);
	}
	cache_free(in->cache);
	in->cache = NULL;
	free(all);
}
