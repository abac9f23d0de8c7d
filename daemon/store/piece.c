/*
 * Pieces between the fetch thread and the cache. A want that pins arrives again after each of its
 * pieces: it ends when the cache has pinned all of them. A piece is a range: either a GET writes it
 * to the cache, or a thread of the store verifies it.
 */
#include "daemon/store/cache_files.h"
#include "daemon/store/stores.h"

#include "daemon/config/refuse.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { STACK_BYTES = 256 * 1024, FILES_LEAST = 64, FILES_MOST = 16384, AHEAD_MOST = 16 };

/* ---- the cache ---- */

/* A quarter of the descriptors, because shards and connections need some, too. */
static unsigned files_kept(void)
{
	struct rlimit limit;
	rlim_t files = FILES_LEAST;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur / 4 > files)
		files = limit.rlim_cur / 4;
	return files < FILES_MOST ? (unsigned)files : FILES_MOST;
}

bool pieces_open(struct stores *stores, struct fault *fault)
{
	const struct config *config = stores->options.config;
	struct store_cache_options options = {
		.log = stores->options.log,
		.log_context = stores->options.log_context,
		.files = files_kept(),
	};
	struct fault cause;

	if (!stores->options.cache || !config || !config->cache_dir)
		return true;
	options.dir = config->cache_dir;
	options.size = config->cache_bytes;
	stores->cache = store_cache_open(&options, &cause);
	return stores->cache || config_refuse(fault, config->path, config->cache_line, cause.field,
					FAULT_NO_INDEX, "%s", cause.text);
}

void pieces_close(struct stores *stores)
{
	store_cache_close(stores->cache);
	stores->cache = NULL;
}

/* ---- verifying ---- */

static void verify(struct stores *stores, const struct range *range)
{
	const struct object object = {.bucket = range->bucket,
		.key = range->key,
		.etag = range->etag,
		.size = range->size,
		.piece = range->piece};

	store_cache_verify(stores->cache, &range->bucket->place, &object, range->at / range->piece);
}

static void *verify_pieces(void *argument)
{
	struct stores *stores = argument;
	struct range *range;
	bool news = false;

	prctl(PR_SET_NAME, "tokend-cache");
	pthread_mutex_lock(&stores->lock);
	for (;;) {
		while (!stores->ending && TAILQ_EMPTY(&stores->unverified))
			pthread_cond_wait(&stores->verify, &stores->lock);
		if (stores->ending)
			break;
		range = TAILQ_FIRST(&stores->unverified);
		TAILQ_REMOVE(&stores->unverified, range, link);
		pthread_mutex_unlock(&stores->lock);
		verify(stores, range);
		pthread_mutex_lock(&stores->lock);
		news = piece_ended(range);
		if (news && stores->news)
			stores->news(stores->news_context);
	}
	pthread_mutex_unlock(&stores->lock);
	return NULL;
}

static void *scan_and_verify(void *argument)
{
	store_cache_scan(((struct stores *)argument)->cache);
	return verify_pieces(argument);
}

bool pieces_start(struct stores *stores, struct fault *fault)
{
	pthread_attr_t attr;
	sigset_t all, before;
	int error = 0;

	if (!stores->cache)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	while (stores->verifiers < STORES_VERIFIERS && !error) {
		error = pthread_create(&stores->verifier[stores->verifiers], &attr,
			stores->verifiers == 0 ? scan_and_verify : verify_pieces, stores);
		stores->verifiers += !error;
	}
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !error || fault_errno(fault, error, "cache",
				 "cannot start a thread of the cache: %s", strerror(error));
}

void pieces_stop(struct stores *stores)
{
	struct range *range;

	pthread_mutex_lock(&stores->lock);
	stores->ending = true;
	pthread_cond_broadcast(&stores->verify);
	pthread_mutex_unlock(&stores->lock);
	while (stores->verifiers > 0)
		pthread_join(stores->verifier[--stores->verifiers], NULL);
	while ((range = TAILQ_FIRST(&stores->unverified))) {
		TAILQ_REMOVE(&stores->unverified, range, link);
		range_end(range); /* all wants were cancelled */
	}
}

/* ---- wants ---- */

/* NULL: out of memory. */
static struct range *new_range(
	struct stores *stores, const struct object *object, uint64_t number, uint64_t hash)
{
	struct range *range = range_new(object, "", 1);

	if (!range)
		return NULL;
	range->piece = object->piece;
	range->at = number * object->piece;
	range->n = cache_piece_bytes(object->size, object->piece, number);
	range->evicts_after = UINT64_MAX;
	range_add_part(stores, range, hash, range->at, range->n);
	return range;
}

/* The range of a piece, which others may wait for already. NULL: out of memory. */
static struct range *piece_range(
	struct stores *stores, struct want *want, uint64_t number, bool absent)
{
	const struct object *object = &want->object;
	uint64_t at = number * object->piece, hash = ~range_hash(object); /* no window has it */
	size_t n = cache_piece_bytes(object->size, object->piece, number);
	struct part *part = range_find(stores, object, hash, at, n);
	struct range *range = part ? part->range : NULL;

	if (range || !session_line(want->session, (struct store_bucket *)object->bucket))
		return range;
	range = new_range(stores, object, number, hash);
	if (!range)
		return NULL;
	if (absent) {
		range_wait(range, want->session, false);
	} else {
		range->state = RANGE_CHECKED;
		TAILQ_INSERT_TAIL(&stores->unverified, range, link);
		pthread_cond_signal(&stores->verify);
	}
	return range;
}

bool piece_arrive(struct stores *stores, struct want *want)
{
	struct range *range;
	uint64_t number;
	enum cache_pin pin = store_cache_pin(stores->cache, &want->object.bucket->place,
		&want->object, want->at, want->n, &want->fd, &number);

	if (pin == CACHE_PINNED) {
		((struct store_bucket *)want->object.bucket)->status.used_bytes += want->n;
		return want_end(stores, want, NULL);
	}
	range = piece_range(stores, want, number, pin == CACHE_ABSENT);
	if (!range)
		return want_end(stores, want, &want_no_memory);
	TAILQ_REMOVE(&stores->arrived, want, link);
	range_join(range, want);
	return false;
}

bool piece_ended(struct range *range)
{
	struct stores *stores = range->bucket->stores;
	bool news = false;
	struct want *want;

	while ((want = TAILQ_FIRST(&range->wants))) {
		TAILQ_REMOVE(&range->wants, want, link);
		want->range = NULL;
		want->state = WANT_ARRIVED;
		TAILQ_INSERT_TAIL(&stores->arrived, want, link);
		if (range->refused)
			news |= want_end(stores, want, NULL);
		else
			stores_wake(stores);
	}
	range_end(range);
	return news;
}

/* ---- pieces that are needed later ---- */

/* Whether another GET delays none that is waited for: at most half of the limit. */
static bool has_time(const struct store_bucket *bucket)
{
	struct fault fault;
	unsigned most = bucket->limit.now / 2 < AHEAD_MOST ? bucket->limit.now / 2 : AHEAD_MOST;

	return TAILQ_EMPTY(&bucket->turns) && bucket->aheads < most &&
	       bucket->status.in_flight < bucket->limit.now && bucket->fails_since_ms == 0 &&
	       bucket->ahead_due_ms <= stores_now_ms() &&
	       wallet_get(bucket->wallet, bucket->credentials, &fault) == WALLET_READY;
}

/* With the lock. NULL: out of memory, or stopped. */
static struct range *new_ahead(struct stores *stores, uint32_t session_id,
	const struct store_need *need, uint64_t number, uint64_t hash)
{
	struct store_bucket *bucket = (struct store_bucket *)need->object.bucket;
	struct session *session = stores->stopped ? NULL : session_find(stores, session_id);
	struct line *line = session ? session_line(session, bucket) : NULL;
	struct range *range = line ? new_range(stores, &need->object, number, hash) : NULL;

	if (!range)
		return NULL;
	range->line = line;
	range->state = RANGE_FLIES;
	range->ahead = true;
	range->evicts_after = need->evicts_after;
	bucket->aheads++;
	bucket->status.in_flight++;
	bucket->status.requests++;
	return range;
}

enum piece_ahead piece_ahead(struct stores *stores, uint32_t session, const struct store_need *need,
	uint64_t number, struct range **range)
{
	const struct object *object = &need->object;
	uint64_t hash = ~range_hash(object), at = number * object->piece;
	enum piece_ahead found = PIECE_THERE;

	if (!store_cache_lacks(stores->cache, &object->bucket->place, object, number))
		return found;
	pthread_mutex_lock(&stores->lock);
	if (!range_find(stores, object, hash, at,
		    cache_piece_bytes(object->size, object->piece, number))) {
		*range = has_time(object->bucket) ? new_ahead(stores, session, need, number, hash)
						  : NULL;
		found = *range ? PIECE_BEGINS : PIECE_BUSY;
	}
	pthread_mutex_unlock(&stores->lock);
	return found;
}

/* ---- writing ---- */

bool piece_begin(struct range *range)
{
	const struct object object = {.bucket = range->bucket,
		.key = range->key,
		.etag = range->etag,
		.size = range->size,
		.piece = range->piece};

	range->write = store_cache_write(range->bucket->stores->cache, &range->bucket->place,
		&object, range->at / range->piece, range->evicts_after);
	range->evicts_after = UINT64_MAX; /* a repetition is for a want */
	range->refused = !range->write;
	return range->write;
}

void piece_end(struct range *range, bool good)
{
	range->refused = !store_cache_end(range->write, good) && good;
	range->write = NULL;
}
