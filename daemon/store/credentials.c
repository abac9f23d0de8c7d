#include "daemon/store/credentials.h"

#include "daemon/store/certificates.h"
#include "daemon/store/internal.h"
#include "daemon/store/providers.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	EARLY_S = 600,	/* renewal begins so long before expiry */
	JITTER_S = 60,	/* at most so much earlier, so that nodes do not renew together */
	AGAIN_MS = 250, /* after a failure, doubled each time */
	AGAIN_MOST_MS = 30000,
	FILE_CHECK_MS = 5000, /* between two reads of files that someone else renews */
};

struct wallet {
	struct wallets *all;
	struct wallet *next;
	char scheme[CONFIG_SCHEME_BYTES];
	struct seek search; /* the helper thread's */
	pthread_t thread;

	/* Below the lock of the wallets. */
	struct credentials now; /* serial 0: none */
	int64_t expires;
	char provider[sizeof(((struct seek *)0)->provider)];
	enum provided last; /* what the last search ended with; NOTHING: none has ended */
	struct fault fault; /* of `last` */
	int64_t due_ms;	    /* the next search */
	unsigned failures;  /* in a row */
	int64_t offset_s;
};

struct wallets {
	const struct config *config;
	void (*news)(void *context);
	void *context;
	pthread_mutex_t lock;
	pthread_cond_t wake; /* of all helpers */
	atomic_bool stop;
	uint64_t serial;
	struct wallet *first;
};

/* ---- the entries of `stores:` ---- */

/* Refuses the value of a key of @store. */
#define REFUSE(key, ...)                                                                           \
	(snprintf(field, sizeof(field), "stores.%s.%s", store->name, #key),                        \
		config_refuse(fault, config->path, store->key##_line, field, __VA_ARGS__))

static bool has_certificate(const struct certificates *ca)
{
	static const char plain[] = "-----BEGIN CERTIFICATE-----";
	static const char trusted[] = "-----BEGIN TRUSTED CERTIFICATE-----";

	return memmem(ca->text, ca->n, plain, strlen(plain)) ||
	       memmem(ca->text, ca->n, trusted, strlen(trusted));
}

/* Whether what it names exists. libcurl checks the rest of `ca`. */
static bool check_store(
	const struct config *config, const struct config_store *store, struct fault *fault)
{
	static const char unreadable[] =
		"%s cannot be read: %s; must be a file that this user may read";
	char field[FAULT_FIELD_BYTES];
	struct certificates ca = {0};
	struct profile profile;
	struct fault why;
	bool good = true;

	if (store->profile && !profile_read(store->profile, &profile, &why))
		return REFUSE(profile, "%s", why.text);
	if (store->profile && !profile.found)
		return REFUSE(profile,
			"'%s' is in neither of the AWS files; add [%s] to ~/.aws/credentials",
			profile.name, profile.name);
	if (store->token_file && access(store->token_file, R_OK) != 0)
		return REFUSE(token_file, unreadable, store->token_file, strerror(errno));
	if (store->query_file && access(store->query_file, R_OK) != 0)
		return REFUSE(query_file, unreadable, store->query_file, strerror(errno));
	if (store->ca && !certificates_append(&ca, store->ca))
		good = REFUSE(ca, unreadable, store->ca, strerror(errno));
	else if (store->ca && !has_certificate(&ca))
		good = REFUSE(ca,
			"%s has no certificate; must be a PEM file (-----BEGIN CERTIFICATE-----)",
			store->ca);
	free(ca.text);
	return good;
}

static bool is_loopback(const char *host)
{
	return strncmp(host, "localhost", 9) == 0 || strncmp(host, "127.", 4) == 0 ||
	       strncmp(host, "[::1]", 5) == 0;
}

/* Notes that others could read the secrets of a place. */
static void note(
	const struct url_place *place, void (*log)(void *context, const char *line), void *context)
{
	const struct config_store *store = place->store;
	bool names_file = store && (store->token_file || store->query_file);
	char path[PATH_MAX], line[LIMIT_TEXT_BYTES];
	struct stat st;

	if (!place->tls && !is_loopback(place->host)) {
		snprintf(line, sizeof(line),
			"%.300s: requests with credentials go to http://%.300s unencrypted; use "
			"https://, or set anonymous: true",
			place->name, place->host);
		log(context, line);
	}
	if (names_file)
		snprintf(path, sizeof(path), "%s",
			store->token_file ? store->token_file : store->query_file);
	else if (!profile_path(
			 getenv("AWS_SHARED_CREDENTIALS_FILE"), "credentials", path, sizeof(path)))
		return;
	if (stat(path, &st) == 0 && (st.st_mode & (S_IRGRP | S_IROTH))) {
		snprintf(line, sizeof(line),
			"%.700s: other users may read the credentials in it (mode %03o); run chmod "
			"600",
			path, st.st_mode & 0777);
		log(context, line);
	}
}

/* ---- the helper threads ---- */

/* From 0 to @most - 1. */
static int64_t random_below(int64_t most)
{
	uint64_t number = 0;

	if (getrandom(&number, sizeof(number), 0) < 0)
		return most / 2;
	return most > 0 ? (int64_t)(number % (uint64_t)most) : 0;
}

/* When credentials that expire in @left_s seconds are renewed: after so many ms. */
static int64_t renewal_ms(int64_t left_s)
{
	int64_t jitter = random_below(JITTER_S * 1000), half = left_s * 500;

	if (left_s > 2 * EARLY_S)
		return (left_s - EARLY_S) * 1000 - jitter;
	half -= random_below(half / 4 + 1);
	return half > AGAIN_MS ? half : AGAIN_MS;
}

static int64_t retry_ms(unsigned failures)
{
	int64_t most = failures < 7 ? AGAIN_MS << failures : AGAIN_MOST_MS;

	return most / 2 + random_below(most / 2 + 1);
}

static bool is_expired(const struct wallet *wallet)
{
	return wallet->expires <= time(NULL) + wallet->offset_s;
}

/* Takes the credentials that were found. Below the lock. False: they are the same. */
static bool take(struct wallet *wallet)
{
	struct seek *search = &wallet->search;

	search->found.serial = wallet->now.serial;
	if (search->found.serial > 0 && search->expires == wallet->expires &&
		memcmp(&search->found, &wallet->now, sizeof(wallet->now)) == 0)
		return false;
	memcpy(&wallet->now, &search->found, sizeof(wallet->now));
	wallet->now.serial = ++wallet->all->serial;
	wallet->expires = search->expires;
	memcpy(wallet->provider, search->provider, sizeof(wallet->provider));
	return true;
}

/* The search is over: publishes its result. Below the lock. True: there is something new. */
static bool publish(struct wallet *wallet, enum provided provided)
{
	const struct config_store *store = wallet->search.store;
	bool found = provided == PROVIDED, news = !found || take(wallet);
	int64_t wait_ms = INT64_MAX / 2;

	wallet->last = provided;
	wallet->fault = wallet->search.fault;
	/* Credentials that are refused and do not change, or that are found expired, are looked
	 * for less and less often, as those that are not found. */
	if (!found || is_expired(wallet))
		wait_ms = retry_ms(wallet->failures);
	else if (wallet->expires != INT64_MAX)
		wait_ms = renewal_ms(wallet->expires - (time(NULL) + wallet->offset_s));
	wallet->failures = found && news && !is_expired(wallet) ? 0 : wallet->failures + 1;
	if (found && store && (store->token_file || store->query_file) && wait_ms > FILE_CHECK_MS)
		wait_ms = FILE_CHECK_MS;
	wallet->due_ms = stores_now_ms() + wait_ms;
	return news;
}

/* Each wallet has its own, so that a provider that hangs delays no other store. */
static void *help(void *argument)
{
	struct wallet *wallet = argument;
	struct wallets *all = wallet->all;

	pthread_setname_np(pthread_self(), "credentials");
	pthread_mutex_lock(&all->lock);
	while (!all->stop) {
		struct timespec due = {wallet->due_ms / 1000, wallet->due_ms % 1000 * 1000000};

		if (wallet->due_ms > stores_now_ms()) {
			pthread_cond_clockwait(&all->wake, &all->lock, CLOCK_MONOTONIC, &due);
			continue;
		}
		pthread_mutex_unlock(&all->lock);
		enum provided provided = providers_search(&wallet->search);

		pthread_mutex_lock(&all->lock);
		bool news = publish(wallet, provided);

		pthread_mutex_unlock(&all->lock);
		if (news && !all->stop)
			all->news(all->context);
		pthread_mutex_lock(&all->lock);
	}
	pthread_mutex_unlock(&all->lock);
	return NULL;
}

/* ---- wallets ---- */

struct wallets *wallets_open(const struct config *config, void (*news)(void *context),
	void *context, struct fault *fault)
{
	for (uint32_t i = 0; config && i < config->stores; i++)
		if (!check_store(config, &config->store[i], fault))
			return NULL;
	struct wallets *all = calloc(1, sizeof(*all));

	if (!all) {
		fault_memory(fault);
		return NULL;
	}
	*all = (struct wallets){.config = config, .news = news, .context = context};
	pthread_mutex_init(&all->lock, NULL);
	pthread_cond_init(&all->wake, NULL);
	return all;
}

void wallets_close(struct wallets *all)
{
	if (!all)
		return;
	pthread_mutex_lock(&all->lock);
	all->stop = true;
	pthread_cond_broadcast(&all->wake);
	pthread_mutex_unlock(&all->lock);
	while (all->first) {
		struct wallet *wallet = all->first;

		pthread_join(wallet->thread, NULL);
		all->first = wallet->next;
		free(wallet);
	}
	pthread_cond_destroy(&all->wake);
	pthread_mutex_destroy(&all->lock);
	free(all);
}

/* Adds the wallet of a store, and starts its helper. Below the lock. NULL: @fault. */
static struct wallet *add(struct wallets *all, const struct url_place *place, struct fault *fault)
{
	struct wallet *wallet = calloc(1, sizeof(*wallet));
	sigset_t signals, before;

	if (!wallet) {
		fault_memory(fault);
		return NULL;
	}
	wallet->all = all;
	wallet->last = PROVIDED_NOTHING;
	wallet->search.store = place->store;
	wallet->search.kind = place->kind;
	wallet->search.stop = &all->stop;
	memcpy(wallet->search.region, place->region, sizeof(wallet->search.region));
	memcpy(wallet->scheme, place->scheme, sizeof(wallet->scheme));
	if (!place->store || !place->store->anonymous)
		prctl(PR_SET_DUMPABLE, 0);
	sigfillset(&signals);
	pthread_sigmask(SIG_SETMASK, &signals, &before);
	int error = pthread_create(&wallet->thread, NULL, help, wallet);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		fault_errno(fault, error, "", "a thread cannot be started: %s", strerror(error));
		free(wallet);
		return NULL;
	}
	wallet->next = all->first;
	all->first = wallet;
	return wallet;
}

struct wallet *wallets_find(struct wallets *all, const struct url_place *place,
	void (*log)(void *context, const char *line), void *context, struct fault *fault)
{
	const struct config_store *store = place->store;
	bool secret = store && (store->token_file || store->query_file);

	pthread_mutex_lock(&all->lock);
	struct wallet *wallet = all->first;

	while (wallet && strcmp(wallet->scheme, place->scheme) != 0)
		wallet = wallet->next;
	if (!wallet)
		wallet = add(all, place, fault);
	pthread_mutex_unlock(&all->lock);
	secret |= place->kind != URL_HTTPS && !(store && store->anonymous);
	if (wallet && log && secret)
		note(place, log, context);
	return wallet;
}

/* Searches now, but less and less often if that does not help. Below the lock. */
static void hurry(struct wallet *wallet)
{
	int64_t soon = stores_now_ms() + (wallet->failures ? retry_ms(wallet->failures) : 0);

	if (soon >= wallet->due_ms)
		return;
	wallet->due_ms = soon;
	pthread_cond_broadcast(&wallet->all->wake);
}

enum wallet_state wallet_get(struct wallet *wallet, struct credentials *mine, struct fault *fault)
{
	enum wallet_state state = WALLET_READY;

	pthread_mutex_lock(&wallet->all->lock);
	bool any = wallet->now.serial > 0, expired = any && is_expired(wallet);

	if (!any || expired) {
		state = !any && wallet->last == PROVIDED_WRONG ? WALLET_NONE : WALLET_LATER;
		if (expired)
			hurry(wallet); /* a clock was set, so they are not due yet */
		if (wallet->last == PROVIDED_LATER || wallet->last == PROVIDED_WRONG)
			*fault = wallet->fault;
		else
			fault_set(fault, FAULT_IO, "", "credentials%s%s",
				expired ? " have expired: " : "", wallet->provider);
	} else if (mine->serial != wallet->now.serial) {
		*mine = wallet->now;
	}
	pthread_mutex_unlock(&wallet->all->lock);
	return state;
}

void wallet_refused(struct wallet *wallet, uint64_t serial)
{
	pthread_mutex_lock(&wallet->all->lock);
	if (serial == wallet->now.serial)
		hurry(wallet);
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
	*expires_s = wallet->now.serial == 0 || wallet->expires == INT64_MAX
			     ? INT64_MAX
			     : wallet->expires - (time(NULL) + wallet->offset_s);
	pthread_mutex_unlock(&wallet->all->lock);
}
