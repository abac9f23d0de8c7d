#include "daemon/store/internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum {
	EARLY_S = 600,	/* seconds from the renewal to the expiry */
	AGAIN_MS = 250, /* after a failure, doubled each time */
	AGAIN_MOST_MS = 30000,
	RENEWED_WITHIN_MS = 1000,
};

/* ---- the helper threads ---- */

/* In how many milliseconds credentials that expire in @left_s seconds are renewed. At random, so
 * that nodes do not renew together. */
static int64_t renewal_ms(int64_t left_s)
{
	int64_t most = left_s > 2 * EARLY_S ? (left_s - EARLY_S) * 1000 : left_s * 500;

	most -= stores_random() % (most / 8 + 1);
	return most > AGAIN_MS ? most : AGAIN_MS;
}

static int64_t retry_ms(unsigned failures)
{
	int64_t most = failures < 7 ? AGAIN_MS << failures : AGAIN_MOST_MS;

	return most / 2 + stores_random() % (most / 2 + 1);
}

int64_t wallet_left_s(const struct wallet *wallet)
{
	bool never = wallet->now.serial == 0 || wallet->now.expires == INT64_MAX;

	return never ? INT64_MAX : wallet->now.expires - (time(NULL) + wallet->clock_offset_s);
}

/* Takes the credentials that were found. False: they are the same. */
static bool take(struct wallet *wallet)
{
	struct credentials *found = &wallet->search.found;

	found->serial = wallet->now.serial;
	if (found->serial > 0 && memcmp(found, &wallet->now, sizeof(*found)) == 0)
		return false;
	wallet->now = *found;
	wallet->now.serial++;
	return true;
}

/* The search is over: publishes its result, with the lock. True: it is news for readings. */
static bool publish(struct wallet *wallet, enum provided provided)
{
	bool news = provided == PROVIDED ? take(wallet) : wallet->now.serial == 0;
	int64_t left_s = wallet_left_s(wallet), wait_ms = INT64_MAX / 2;
	bool good = provided == PROVIDED && left_s > 0;

	wallet->last = provided;
	wallet->fault = wallet->search.fault;
	/* Credentials that are refused and do not change, or that are found expired, are looked
	 * for less and less often, as those that are not found. */
	if (!good)
		wait_ms = retry_ms(wallet->failures);
	else if (left_s != INT64_MAX)
		wait_ms = renewal_ms(left_s);
	wallet->failures = good && news ? 0 : wallet->failures + 1;
	wallet->due_ms = stores_now_ms() + wait_ms;
	return news;
}

/* Each wallet has its own, so that a provider that hangs delays no other store. */
static void *help(void *argument)
{
	struct store_bucket *bucket = argument;
	struct stores *stores = bucket->stores;
	struct wallet *wallet = &bucket->wallet;

	pthread_setname_np(pthread_self(), "credentials");
	pthread_mutex_lock(&stores->lock);
	while (!stores->closing) {
		struct timespec due = {wallet->due_ms / 1000, wallet->due_ms % 1000 * 1000000};

		if (wallet->due_ms > stores_now_ms()) {
			pthread_cond_clockwait(
				&stores->helpers, &stores->lock, CLOCK_MONOTONIC, &due);
			continue;
		}
		pthread_mutex_unlock(&stores->lock);
		enum provided provided = providers_search(&wallet->search);

		pthread_mutex_lock(&stores->lock);
		/* The first credentials need no jitter: no GET was denied. */
		if (publish(wallet, provided))
			readings_hasten(bucket, HASTY_CREDENTIALS,
				wallet->now.serial > 1 ? RENEWED_WITHIN_MS : 1);
	}
	pthread_mutex_unlock(&stores->lock);
	return NULL;
}

void wallet_hurry(struct wallet *wallet)
{
	int64_t soon = stores_now_ms() + (wallet->failures ? retry_ms(wallet->failures) : 0);

	if (soon >= wallet->due_ms)
		return;
	wallet->due_ms = soon;
	pthread_cond_broadcast(&wallet->search.bucket->stores->helpers);
}

/* ---- wallets ---- */

static bool is_loopback(const char *host)
{
	return strncmp(host, "localhost", 9) == 0 || strncmp(host, "127.", 4) == 0 ||
	       strncmp(host, "[::1]", 5) == 0;
}

bool wallet_open(struct store_bucket *bucket, struct fault *fault)
{
	const struct url_place *place = &bucket->place;
	const struct config_store *store = place->store;
	bool file = store && (store->token_file || store->query_file);
	bool anonymous = store && store->anonymous;
	sigset_t all, before;

	bucket->wallet.last = PROVIDED_NOTHING;
	bucket->wallet.search.bucket = bucket;
	if (!anonymous)
		prctl(PR_SET_DUMPABLE, 0);
	if ((file || (place->kind != URL_HTTPS && !anonymous)) && !place->tls &&
		!is_loopback(place->host))
		stores_log(&bucket->stores->options,
			"%.300s: requests with credentials go to http://%.300s unencrypted; use "
			"https://, or set anonymous: true",
			place->name, place->host);
	sigfillset(&all); /* it gets no signals */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = pthread_create(&bucket->wallet.thread, NULL, help, bucket);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return !error || fault_errno(fault, error, "stores", "a thread cannot be started: %s",
				 strerror(error));
}
