#include "daemon/store/stores.h"

#include "daemon/config/refuse.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

/* ---- the stores of a process ---- */

static void on_credentials(void *context)
{
	struct stores *stores = context;

	atomic_store(&stores->new_credentials, true);
	if (stores->wake_fd >= 0)
		eventfd_write(stores->wake_fd, 1);
}

/* Opens the cache of the config. False: @fault. */
static bool open_cache(struct stores *stores, struct fault *fault)
{
	const struct config *config = stores->options.config;
	struct fault cause;

	if (!stores->options.cache || !config || !config->cache_dir)
		return true;
	stores->cache = store_cache_open(
		&(struct store_cache_options){
			.dir = config->cache_dir,
			.size = config->cache_bytes,
			.log = stores->options.log,
			.log_context = stores->options.log_context,
		},
		&cause);
	return stores->cache || config_refuse(fault, config->path, config->cache_line, cause.field,
					FAULT_NO_INDEX, "%s", cause.text);
}

struct stores *store_open(const struct store_options *options, struct fault *fault)
{
	struct stores *stores = calloc(1, sizeof(*stores));

	if (!stores) {
		fault_memory(fault);
		return NULL;
	}
	stores->options = *options;
	stores->epoll_fd = stores->wake_fd = -1;
	pthread_mutex_init(&stores->adding, NULL);
	pthread_mutex_init(&stores->lock, NULL);
	TAILQ_INIT(&stores->arrived);
	TAILQ_INIT(&stores->done);
	TAILQ_INIT(&stores->resting);
	TAILQ_INIT(&stores->queued);
	TAILQ_INIT(&stores->taken);
	TAILQ_INIT(&stores->spare);
	stores->wallets = wallets_open(options->config, on_credentials, stores, fault);
	if (stores->wallets && open_cache(stores, fault))
		return stores;
	store_close(stores);
	return NULL;
}

void store_patience(struct stores *stores, int64_t patience_ms)
{
	pthread_mutex_lock(&stores->lock);
	stores->options.patience_ms = patience_ms;
	pthread_mutex_unlock(&stores->lock);
}

void store_stop(struct stores *stores)
{
	bool news = false;

	pthread_mutex_lock(&stores->lock);
	stores->stopped = true;
	for (unsigned i = 0; i < SESSIONS_CHAINS; i++)
		for (struct session *s = stores->session[i]; s; s = s->next)
			news |= wants_cancel(stores, s);
	pthread_mutex_unlock(&stores->lock);
	if (news)
		stores_tell(stores);
}

static void free_wants(struct stores *stores, struct wants *wants)
{
	struct want *want;

	while ((want = TAILQ_FIRST(wants))) {
		TAILQ_REMOVE(wants, want, link);
		want_leave(stores, want);
		free(want);
	}
}

static void free_sessions(struct stores *stores)
{
	for (unsigned i = 0; i < SESSIONS_CHAINS; i++) {
		while (stores->session[i]) {
			struct session *session = stores->session[i];

			stores->session[i] = session->next;
			while (session->lines) {
				struct line *line = session->lines;

				session->lines = line->next;
				free(line);
			}
			free(session);
		}
	}
}

void store_close(struct stores *stores)
{
	if (!stores)
		return;
	store_stop(stores);
	fetch_end(stores);
	wallets_close(stores->wallets);
	fetch_close(stores);
	free_wants(stores, &stores->queued);
	free_wants(stores, &stores->done);
	free_wants(stores, &stores->taken);
	free_wants(stores, &stores->spare);
	for (struct store_bucket *b = stores->buckets; b; b = b->next)
		ranges_drop(b);
	free_sessions(stores);
	store_cache_close(stores->cache);
	buckets_free(stores);
	pthread_mutex_destroy(&stores->lock);
	pthread_mutex_destroy(&stores->adding);
	free(stores);
}

bool store_is_url(const char *path)
{
	return url_text_is(path);
}

/* ---- the data thread ---- */

void store_listen(struct stores *stores, void (*news)(void *context), void *context)
{
	pthread_mutex_lock(&stores->lock);
	stores->news = news;
	stores->news_context = context;
	pthread_mutex_unlock(&stores->lock);
}

static struct want *want_new(struct stores *stores)
{
	struct want *want = TAILQ_FIRST(&stores->spare);

	if (want)
		TAILQ_REMOVE(&stores->spare, want, link);
	else
		want = malloc(sizeof(*want));
	return want;
}

bool store_fetch(struct stores *stores, const struct store_fetch *fetch)
{
	struct want *want = want_new(stores);

	if (!want)
		return false;
	*want = (struct want){
		.tag = fetch->tag,
		.object = fetch->object,
		.at = fetch->at,
		.n = fetch->n,
		.to = fetch->to,
		.session_id = fetch->session,
		.state = WANT_QUEUED,
	};
	TAILQ_INSERT_TAIL(&stores->queued, want, link);
	return true;
}

void store_commit(struct stores *stores)
{
	bool news = false;
	struct want *want;

	if (TAILQ_EMPTY(&stores->queued))
		return;
	pthread_mutex_lock(&stores->lock);
	while ((want = TAILQ_FIRST(&stores->queued))) {
		TAILQ_REMOVE(&stores->queued, want, link);
		news |= want_arrive(stores, want);
	}
	pthread_mutex_unlock(&stores->lock);
	if (news)
		stores_tell(stores);
}

/* Returns the wants of the last take, whose faults the caller has read by now. */
static void recycle(struct stores *stores)
{
	struct want *want;

	while ((want = TAILQ_FIRST(&stores->taken))) {
		TAILQ_REMOVE(&stores->taken, want, link);
		want_leave(stores, want);
		TAILQ_INSERT_TAIL(&stores->spare, want, link);
	}
}

unsigned store_take(struct stores *stores, struct store_done *done, unsigned max)
{
	struct want *want;
	unsigned n = 0;

	pthread_mutex_lock(&stores->lock);
	recycle(stores);
	while (n < max && (want = TAILQ_FIRST(&stores->done))) {
		TAILQ_REMOVE(&stores->done, want, link);
		TAILQ_INSERT_TAIL(&stores->taken, want, link);
		done[n++] = (struct store_done){.tag = want->tag, .fault = want->fault};
	}
	pthread_mutex_unlock(&stores->lock);
	TAILQ_FOREACH(want, &stores->taken, link)
	if (!want->fault && want->range)
		memcpy(want->to, want->range->body + want->offset, want->n);
	return n;
}

/* ---- sessions ---- */

void store_allow(struct stores *stores, uint32_t session)
{
	pthread_mutex_lock(&stores->lock);
	struct session *found = session_find(stores, session);

	if (found)
		found->cancelled = false;
	pthread_mutex_unlock(&stores->lock);
}

void store_cancel(struct stores *stores, uint32_t session)
{
	bool news = false;

	pthread_mutex_lock(&stores->lock);
	struct session *found = session_find(stores, session);

	if (found) {
		found->cancelled = true; /* those of `queued` end when they arrive */
		news = wants_cancel(stores, found);
	}
	pthread_mutex_unlock(&stores->lock);
	if (news)
		stores_tell(stores);
}
