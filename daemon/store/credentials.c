#include "daemon/store/credentials.h"

#include "daemon/store/providers.h"
#include "daemon/store/secret.h"
#include "daemon/store/settings.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
	EARLY_S = 600,	/* renewal begins so long before expiry */
	JITTER_S = 60,	/* at most so much earlier, so that nodes do not renew together */
	RETRY_MS = 250, /* after a failure, doubled each time */
	RETRY_MOST_MS = 30000,
	FILE_CHECK_MS = 5000, /* files that someone else renews are read again so often */
};

struct wallet {
	struct wallets *all;
	struct wallet *next;
	struct seek search; /* of the helper thread; search.to is its own copy */
	char scheme[CONFIG_SCHEME_BYTES];

	/* Below the lock of the wallets. */
	struct credentials *now; /* serial 0: none */
	int64_t expires;
	char provider[sizeof(((struct seek *)0)->provider)];
	bool failed, final; /* the last search failed, with @fault, which a new try does not end */
	bool again;	    /* search although it is final */
	struct fault fault;
	bool refused;	   /* a store rejected `now` */
	int64_t due_ms;	   /* the next search */
	unsigned failures; /* in a row */
	int64_t offset_s;

	pthread_t thread; /* its helper */
	bool running;
};

struct wallets {
	const struct config *config;
	void (*news)(void *context);
	void *context;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* of all helpers */
	bool stopping;
	int stop; /* an eventfd */
	uint64_t serial;
	struct wallet *first;
};

struct credentials *credentials_new(void)
{
	return secret_new(sizeof(struct credentials));
}

void credentials_free(struct credentials *credentials)
{
	secret_free(credentials, sizeof(*credentials));
}

static int64_t monotonic_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* From 0 to @most - 1. */
static int64_t random_below(int64_t most)
{
	uint64_t number = 0;

	if (getrandom(&number, sizeof(number), 0) < 0)
		return most / 2;
	return most > 0 ? (int64_t)(number % (uint64_t)most) : 0;
}

/* ---- the helper threads ---- */

/* When credentials that expire in @left_s seconds are renewed: after so many ms. */
static int64_t renewal_ms(int64_t left_s)
{
	int64_t jitter = random_below(JITTER_S * 1000), half = left_s * 500;

	if (left_s > 2 * EARLY_S)
		return (left_s - EARLY_S) * 1000 - jitter;
	half -= random_below(half / 4 + 1);
	return half > RETRY_MS ? half : RETRY_MS;
}

static int64_t retry_ms(unsigned failures)
{
	int64_t most = failures < 8 ? RETRY_MS << failures : RETRY_MOST_MS;

	most = most < RETRY_MOST_MS ? most : RETRY_MOST_MS;
	return most / 2 + random_below(most / 2 + 1);
}

/* The search is over: publishes its result. Below the lock. True: there is something new. */
static bool publish(struct wallet *wallet, enum provided provided)
{
	struct seek *search = &wallet->search;
	int64_t now_s = time(NULL) + wallet->offset_s, wait_ms;

	wallet->again = false;
	if (provided != PROVIDED) {
		wallet->failed = true;
		wallet->final = provided == PROVIDED_WRONG && wallet->now->serial == 0;
		wallet->fault = search->fault;
		wallet->due_ms = monotonic_ms() + retry_ms(wallet->failures++);
		return true;
	}
	search->to->serial = wallet->now->serial;
	bool same = wallet->now->serial > 0 &&
		    memcmp(&search->to->keys, &wallet->now->keys,
			    offsetof(struct sign_keys, day)) == 0 &&
		    search->to->kind == wallet->now->kind &&
		    strcmp(search->to->bearer, wallet->now->bearer) == 0 &&
		    strcmp(search->to->query, wallet->now->query) == 0 &&
		    search->expires == wallet->expires;

	if (!same) {
		*wallet->now = *search->to;
		wallet->now->serial = ++wallet->all->serial;
		wallet->expires = search->expires;
		memcpy(wallet->provider, search->provider, sizeof(wallet->provider));
	}
	bool expired = wallet->expires <= now_s;

	/* Credentials that are refused and do not change, or that are found expired, are looked
	 * for less and less often. */
	wallet->failures = same || expired ? wallet->failures + 1 : 0;
	wallet->failed = wallet->final = wallet->refused = false;
	bool files = search->store && (search->store->token_file || search->store->query_file);

	wait_ms =
		wallet->expires == INT64_MAX ? INT64_MAX / 2 : renewal_ms(wallet->expires - now_s);
	if (expired)
		wait_ms = retry_ms(wallet->failures);
	if (files && wait_ms > FILE_CHECK_MS)
		wait_ms = FILE_CHECK_MS;
	wallet->due_ms = monotonic_ms() + wait_ms;
	return !same;
}

static void wait_until(struct wallets *all, int64_t due_ms)
{
	struct timespec until = {due_ms / 1000, due_ms % 1000 * 1000000};

	pthread_cond_timedwait(&all->wake, &all->lock, &until);
}

/* Each wallet has its own, so that a provider that hangs delays no other store. */
static void *help(void *argument)
{
	struct wallet *wallet = argument;
	struct wallets *all = wallet->all;

	pthread_setname_np(pthread_self(), "credentials");
	pthread_mutex_lock(&all->lock);
	while (!all->stopping) {
		if (wallet->final && !wallet->again) {
			pthread_cond_wait(&all->wake, &all->lock);
			continue;
		}
		if (wallet->due_ms > monotonic_ms()) {
			wait_until(all, wallet->due_ms);
			continue;
		}
		pthread_mutex_unlock(&all->lock);
		enum provided provided = providers_search(&wallet->search);

		pthread_mutex_lock(&all->lock);
		bool news = publish(wallet, provided) && !all->stopping;

		explicit_bzero(wallet->search.to, sizeof(*wallet->search.to));
		if (news) {
			pthread_mutex_unlock(&all->lock);
			all->news(all->context);
			pthread_mutex_lock(&all->lock);
		}
	}
	pthread_mutex_unlock(&all->lock);
	return NULL;
}

/* ---- wallets ---- */

struct wallets *wallets_open(const struct config *config, void (*news)(void *context),
	void *context, struct fault *fault)
{
	struct wallets *all;
	pthread_condattr_t attributes;

	if (!settings_check(config, fault))
		return NULL;
	/* jansson keeps copies of the secrets that it parses. */
	json_set_alloc_funcs(malloc, secret_heap_free);
	all = calloc(1, sizeof(*all));
	if (!all) {
		fault_memory(fault);
		return NULL;
	}
	*all = (struct wallets){.config = config, .news = news, .context = context};
	all->stop = eventfd(0, EFD_CLOEXEC);
	if (all->stop < 0) {
		fault_errno(fault, errno, "", "an eventfd cannot be created: %s", strerror(errno));
		free(all);
		return NULL;
	}
	pthread_mutex_init(&all->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&all->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	return all;
}

static void wallet_free(struct wallet *wallet)
{
	credentials_free(wallet->now);
	credentials_free(wallet->search.to);
	free(wallet);
}

void wallets_close(struct wallets *all)
{
	uint64_t one = 1;

	if (!all)
		return;
	pthread_mutex_lock(&all->lock);
	all->stopping = true;
	if (write(all->stop, &one, sizeof(one)) < 0)
		assert(errno == EAGAIN);
	pthread_cond_broadcast(&all->wake);
	pthread_mutex_unlock(&all->lock);
	while (all->first) {
		struct wallet *wallet = all->first;

		if (wallet->running)
			pthread_join(wallet->thread, NULL);
		all->first = wallet->next;
		wallet_free(wallet);
	}
	close(all->stop);
	pthread_cond_destroy(&all->wake);
	pthread_mutex_destroy(&all->lock);
	free(all);
}

/* Below the lock. NULL: @fault. */
static struct wallet *add_wallet(
	struct wallets *all, const struct url_place *place, struct fault *fault)
{
	struct wallet *wallet = calloc(1, sizeof(*wallet));

	if (wallet) {
		wallet->now = credentials_new();
		wallet->search.to = credentials_new();
	}
	if (!wallet || !wallet->now || !wallet->search.to) {
		if (wallet)
			wallet_free(wallet);
		fault_memory(fault);
		return NULL;
	}
	wallet->all = all;
	wallet->search.store = place->store;
	wallet->search.kind = place->kind;
	wallet->search.stop = all->stop;
	memcpy(wallet->search.region, place->region, sizeof(wallet->search.region));
	memcpy(wallet->scheme, place->scheme, sizeof(wallet->scheme));
	wallet->next = all->first;
	all->first = wallet;
	return wallet;
}

struct wallet *wallets_find(struct wallets *all, const struct url_place *place, struct fault *fault)
{
	struct wallet *wallet;

	pthread_mutex_lock(&all->lock);
	for (wallet = all->first; wallet; wallet = wallet->next)
		if (strcmp(wallet->scheme, place->scheme) == 0)
			break;
	if (!wallet)
		wallet = add_wallet(all, place, fault);
	if (wallet && !wallet->running) {
		sigset_t signals, before;

		sigfillset(&signals);
		pthread_sigmask(SIG_SETMASK, &signals, &before);
		int error = pthread_create(&wallet->thread, NULL, help, wallet);

		pthread_sigmask(SIG_SETMASK, &before, NULL);
		wallet->running = error == 0;
		if (error) {
			fault_errno(fault, error, "", "a thread cannot be started: %s",
				strerror(error));
			wallet = NULL;
		}
	}
	/* libcurl keeps copies of tokens that no madvise() reaches. */
	if (wallet && (!place->store || !place->store->anonymous))
		prctl(PR_SET_DUMPABLE, 0);
	pthread_cond_broadcast(&all->wake);
	pthread_mutex_unlock(&all->lock);
	return wallet;
}

/* Searches now, but less and less often if that does not help. Below the lock. */
static void hurry(struct wallet *wallet)
{
	int64_t soon = monotonic_ms() + (wallet->failures ? retry_ms(wallet->failures) : 0);

	if (soon >= wallet->due_ms)
		return;
	wallet->due_ms = soon;
	pthread_cond_broadcast(&wallet->all->wake);
}

enum wallet_state wallet_get(struct wallet *wallet, struct credentials *mine, struct fault *fault)
{
	enum wallet_state state = WALLET_READY;

	pthread_mutex_lock(&wallet->all->lock);
	const struct credentials *now = wallet->now;
	bool expired = wallet->expires <= time(NULL) + wallet->offset_s;

	if (now->serial == 0 || expired) {
		state = wallet->final ? WALLET_NONE : WALLET_LATER;
		/* Someone may have written the file that was missing. */
		if (wallet->final && !wallet->again && wallet->due_ms <= monotonic_ms()) {
			wallet->again = true;
			pthread_cond_broadcast(&wallet->all->wake);
		}
		if (now->serial && expired)
			hurry(wallet); /* a clock was set, so they are not due yet */
		if (wallet->failed)
			*fault = wallet->fault;
		else
			fault_set(fault, FAULT_IO, "", "credentials%s%s",
				expired && now->serial ? " have expired: " : "", wallet->provider);
	} else if (mine->serial != now->serial) {
		*mine = *now;
	}
	pthread_mutex_unlock(&wallet->all->lock);
	return state;
}

void wallet_refused(struct wallet *wallet, uint64_t serial)
{
	pthread_mutex_lock(&wallet->all->lock);
	if (serial == wallet->now->serial && !wallet->refused) {
		wallet->refused = true;
		hurry(wallet);
	}
	pthread_mutex_unlock(&wallet->all->lock);
}

void wallet_clock(struct wallet *wallet, int64_t offset_s)
{
	pthread_mutex_lock(&wallet->all->lock);
	wallet->offset_s = offset_s;
	pthread_mutex_unlock(&wallet->all->lock);
}

void wallet_status(struct wallet *wallet, char provider[64], int64_t *expires_s)
{
	pthread_mutex_lock(&wallet->all->lock);
	memcpy(provider, wallet->provider, sizeof(wallet->provider));
	*expires_s = wallet->now->serial == 0 || wallet->expires == INT64_MAX
			     ? INT64_MAX
			     : wallet->expires - (time(NULL) + wallet->offset_s);
	pthread_mutex_unlock(&wallet->all->lock);
}
