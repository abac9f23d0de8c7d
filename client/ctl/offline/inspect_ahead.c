/*
 * Threads read shards ahead of the one that is reported next, at most CTL_GETS. The first thread
 * reports, and reads the next one itself if no other has begun: there may be no other thread.
 */
#include "client/ctl/offline/inspect_ahead.h"

#include "client/ctl/offline/scan.h"
#include "client/ctl/offline/stores.h"
#include "daemon/shard/cache.h"
#include "proto/phrases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct slot {
	struct inspected file;
	char path[PATH_MAX];
	bool ready;
};

struct pipeline {
	struct inspect *in;
	const struct ctl_listing *listing;
	pthread_t reporter;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t next, reported; /* of the listing's files */
	bool stop;		 /* stdout is closed */
	struct slot slot[CTL_GETS];
};

static void read_one(struct pipeline *p, uint64_t i)
{
	const struct ctl_listing *l = p->listing;
	struct slot *slot = &p->slot[i % CTL_GETS];
	const char *name = shard_list_name(&l->list, l->file + i);

	memset(&slot->file, 0, sizeof(slot->file));
	shard_list_path(&l->list, l->file + i, slot->path, sizeof(slot->path));
	inspect_begin(p->in, &slot->file, slot->path, slot->path, name);
	inspect_read(p->in, &slot->file);
	if (!p->in->deep && p->in->sums_piece == 0)
		ctl_progress_add(&p->in->progress, 1);
}

static void read_next(struct pipeline *p)
{
	uint64_t i = p->next++;

	pthread_mutex_unlock(&p->lock);
	read_one(p, i);
	pthread_mutex_lock(&p->lock);
	p->slot[i % CTL_GETS].ready = true;
	pthread_cond_broadcast(&p->changed);
}

static void read_some(struct pipeline *p)
{
	pthread_mutex_lock(&p->lock);
	while (!p->stop && p->next < p->listing->files) {
		if (p->next - p->reported >= CTL_GETS)
			pthread_cond_wait(&p->changed, &p->lock);
		else
			read_next(p);
	}
	pthread_mutex_unlock(&p->lock);
}

static void report_all(struct pipeline *p)
{
	pthread_mutex_lock(&p->lock);
	while (p->reported < p->listing->files && !p->in->out.failed) {
		struct slot *slot = &p->slot[p->reported % CTL_GETS];

		while (!slot->ready) {
			if (p->next == p->reported)
				read_next(p);
			else
				pthread_cond_wait(&p->changed, &p->lock);
		}
		pthread_mutex_unlock(&p->lock);
		inspect_end(p->in, &slot->file);
		pthread_mutex_lock(&p->lock);
		slot->ready = false;
		p->reported++;
		pthread_cond_broadcast(&p->changed);
	}
	p->stop = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
}

static void *work(void *context)
{
	struct pipeline *p = context;

	if (pthread_equal(pthread_self(), p->reporter))
		report_all(p);
	else
		read_some(p);
	return NULL;
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
	struct pipeline *p = calloc(1, sizeof(*p));

	cache_free(in->cache);
	in->cache = cache_new(l->list.root);
	if (p && in->cache) {
		p->in = in;
		p->listing = l;
		p->reporter = pthread_self();
		pthread_mutex_init(&p->lock, NULL);
		pthread_cond_init(&p->changed, NULL);
		in->listing = l;
		in->threads = (unsigned)(CTL_GETS / threads);
		in->alone = l->files == 1;
		begin_progress(in, l, url);
		ctl_threads((unsigned)threads + 1, work, p);
		ctl_progress_end(&in->progress);
		in->listing = NULL;
		in->threads = 0;
	} else {
		inspect_unread(in, url, PHRASE_MEMORY);
	}
	cache_free(in->cache);
	in->cache = NULL;
	free(p);
}
