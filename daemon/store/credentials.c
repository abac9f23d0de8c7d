#include "daemon/store/internal.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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
	struct stores *stores;
	struct wallet *next;
	char scheme[CONFIG_SCHEME_BYTES];
	struct seek search; /* the helper thread's */
	pthread_t thread;

	/* The lock's. */
	struct credentials now; /* serial 0: none */
	int64_t expires;
	char provider[sizeof(((struct seek *)0)->provider)];
	enum provided last; /* what the last search ended with; NOTHING: none has ended */
	struct fault fault; /* of `last` */
	int64_t due_ms;	    /* the next search */
	unsigned failures;  /* in a row */
	int64_t offset_s;
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

/* Notes that others could read the secrets of a place: they go over the network unencrypted, or
 * other users may read their file. */
static void note(const struct store_options *options, const struct url_place *place)
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
		options->log(options->log_context, line);
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
		options->log(options->log_context, line);
	}
}

/* ---- the helper threads ---- */

/* When credentials that expire in @left_s seconds are renewed: after so many ms. */
static int64_t renewal_ms(int64_t left_s)
{
	int64_t jitter = stores_random() % (JITTER_S * 1000), half = left_s * 500;

	if (left_s > 2 * EARLY_S)
		return (left_s - EARLY_S) * 1000 - jitter;
	half -= stores_random() % (half / 4 + 1);
	return half > AGAIN_MS ? half : AGAIN_MS;
}

static int64_t retry_ms(unsigned failures)
{
	int64_t most = failures < 7 ? AGAIN_MS << failures : AGAIN_MOST_MS;

	return most / 2 + stores_random() % (most / 2 + 1);
}

static bool is_expired(const struct wallet *wallet)
{
	return wallet->expires <= time(NULL) + wallet->offset_s;
}

/* Takes the credentials that were found. False: they are the same. */
static bool take(struct wallet *wallet)
{
	struct seek *search = &wallet->search;

	search->found.serial = wallet->now.serial;
	if (search->found.serial > 0 && search->expires == wallet->expires &&
		memcmp(&search->found, &wallet->now, sizeof(wallet->now)) == 0)
		return false;
	memcpy(&wallet->now, &search->found, sizeof(wallet->now));
	wallet->now.serial = ++wallet->stores->serial;
	wallet->expires = search->expires;
	memcpy(wallet->provider, search->provider, sizeof(wallet->provider));
	return true;
}

/* The search is over: publishes its result, with the lock. True: there is something new. */
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

/* Readings that wait for credentials look for them now. */
static void wake_waiting(struct stores *stores)
{
	struct reading *r;

	TAILQ_FOREACH(r, &stores->readings, link)
	{
		if (r->renews)
			r->due_ms = 0;
		pthread_cond_signal(&r->wake);
	}
}

/* Each wallet has its own, so that a provider that hangs delays no other store. */
static void *help(void *argument)
{
	struct wallet *wallet = argument;
	struct stores *stores = wallet->stores;

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
		if (publish(wallet, provided))
			wake_waiting(stores);
	}
	pthread_mutex_unlock(&stores->lock);
	return NULL;
}

/* ---- wallets ---- */

bool wallets_check(const struct config *config, struct fault *fault)
{
	for (uint32_t i = 0; config && i < config->stores; i++)
		if (!check_store(config, &config->store[i], fault))
			return false;
	return true;
}

void wallets_close(struct stores *stores)
{
	pthread_mutex_lock(&stores->lock);
	stores->closing = true;
	pthread_cond_broadcast(&stores->helpers);
	pthread_mutex_unlock(&stores->lock);
	while (stores->wallets) {
		struct wallet *wallet = stores->wallets;

		pthread_join(wallet->thread, NULL);
		stores->wallets = wallet->next;
		free(wallet);
	}
}

/* Adds the wallet of a store, and starts its helper. NULL: @fault. */
static struct wallet *add(struct stores *stores, const struct url_place *place, struct fault *fault)
{
	struct wallet *wallet = calloc(1, sizeof(*wallet));

	if (!wallet) {
		fault_memory(fault);
		return NULL;
	}
	wallet->stores = stores;
	wallet->last = PROVIDED_NOTHING;
	wallet->search.store = place->store;
	wallet->search.kind = place->kind;
	wallet->search.stop = &stores->closing;
	memcpy(wallet->search.region, place->region, sizeof(wallet->search.region));
	memcpy(wallet->scheme, place->scheme, sizeof(wallet->scheme));
	if (!place->store || !place->store->anonymous)
		prctl(PR_SET_DUMPABLE, 0);
	if (stores_thread(&wallet->thread, help, wallet, fault)) {
		wallet->next = stores->wallets;
		return stores->wallets = wallet;
	}
	free(wallet);
	return NULL;
}

struct wallet *wallet_find(
	struct stores *stores, const struct url_place *place, struct fault *fault)
{
	const struct config_store *store = place->store;
	bool secret = store && (store->token_file || store->query_file);

	pthread_mutex_lock(&stores->lock);
	struct wallet *wallet = stores->wallets;

	while (wallet && strcmp(wallet->scheme, place->scheme) != 0)
		wallet = wallet->next;
	if (!wallet)
		wallet = add(stores, place, fault);
	pthread_mutex_unlock(&stores->lock);
	secret |= place->kind != URL_HTTPS && !(store && store->anonymous);
	if (wallet && stores->options.log && secret)
		note(&stores->options, place);
	return wallet;
}

/* Searches now, but less and less often if that does not help. */
static void hurry(struct wallet *wallet)
{
	int64_t soon = stores_now_ms() + (wallet->failures ? retry_ms(wallet->failures) : 0);

	if (soon >= wallet->due_ms)
		return;
	wallet->due_ms = soon;
	pthread_cond_broadcast(&wallet->stores->helpers);
}

enum wallet_state wallet_get(struct wallet *wallet, struct credentials *mine, struct fault *fault)
{
	enum wallet_state state = WALLET_READY;
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
	return state;
}

void wallet_refused(struct wallet *wallet, uint64_t serial)
{
	if (serial == wallet->now.serial)
		hurry(wallet);
}

void wallet_clock(struct wallet *wallet, int64_t offset_s)
{
	wallet->offset_s = offset_s;
}

void wallet_status(const struct wallet *wallet, char provider[64], int64_t *expires_s)
{
	memcpy(provider, wallet->provider, sizeof(wallet->provider));
	*expires_s = wallet->now.serial == 0 || wallet->expires == INT64_MAX
			     ? INT64_MAX
			     : wallet->expires - (time(NULL) + wallet->offset_s);
}
