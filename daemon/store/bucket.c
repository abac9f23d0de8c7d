#include "daemon/store/stores.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONNECTIONS = 128 };

static void bucket_free(struct store_bucket *bucket)
{
	if (!bucket)
		return;
	free(bucket->credentials);
	free(bucket->certificates.text);
	free(bucket);
}

/*
 * The certificates of a store with `ca:`. libcurl parses a file anew for each connection unless it
 * is the only source, and a system's file costs 15 ms and a megabyte. So the system's directory is
 * preferred.
 */
static bool bucket_trust(struct store_bucket *bucket, const char *ca, struct fault *fault)
{
	const char *system = certificates_system();

	bucket->ca_directory = certificates_directory();
	if (!bucket->ca_directory && system)
		certificates_append(&bucket->certificates, system);
	if (certificates_append(&bucket->certificates, ca))
		return true;
	return fault_errno(fault, errno, "ca", "`ca:` %s cannot be read: %s", ca, strerror(errno));
}

static struct store_bucket *bucket_new(
	struct stores *stores, const struct url_place *place, struct fault *fault)
{
	struct store_bucket *bucket = calloc(1, sizeof(*bucket));
	const struct config_store *config = place->store;

	if (!bucket || !(bucket->credentials = calloc(1, sizeof(*bucket->credentials)))) {
		free(bucket);
		fault_memory(fault);
		return NULL;
	}
	bucket->stores = stores;
	bucket->place = *place;
	bucket->limit =
		limit_new(config && config->connections ? config->connections : CONNECTIONS);
	TAILQ_INIT(&bucket->turns);
	TAILQ_INIT(&bucket->kept);
	snprintf(bucket->status.name, sizeof(bucket->status.name), "%.159s", place->name);
	if (config && config->ca && !bucket_trust(bucket, config->ca, fault)) {
		bucket_free(bucket);
		return NULL;
	}
	bucket->wallet = wallets_find(
		stores->wallets, place, stores->options.log, stores->options.log_context, fault);
	if (bucket->wallet)
		return bucket;
	bucket_free(bucket);
	return NULL;
}

static struct store_bucket *find(struct stores *stores, const struct url_place *place)
{
	struct store_bucket *bucket = stores->buckets;

	while (bucket && strcmp(bucket->place.name, place->name) != 0)
		bucket = bucket->next;
	return bucket;
}

static struct store_bucket *find_or_add(
	struct stores *stores, const struct url_place *place, struct fault *fault)
{
	struct store_bucket *bucket = find(stores, place), **end = &stores->buckets;

	if (bucket)
		return bucket;
	if (!stores->running && !fetch_open(stores, fault))
		return NULL;
	bucket = bucket_new(stores, place, fault);
	if (!bucket)
		return NULL;
	pthread_mutex_lock(&stores->lock);
	while (*end)
		end = &(*end)->next;
	stores->bucket_count++;
	*end = bucket;
	pthread_mutex_unlock(&stores->lock);
	return bucket;
}

const struct store_bucket *store_bucket(
	struct stores *stores, const char *url, const char **key, struct fault *fault)
{
	struct url_place place;

	if (!url_place(stores->options.config, url, &place, key, fault))
		return NULL;
	pthread_mutex_lock(&stores->adding); /* files are read, and libcurl is loaded */
	const struct store_bucket *bucket = find_or_add(stores, &place, fault);

	pthread_mutex_unlock(&stores->adding);
	return bucket;
}

void bucket_used(const struct object *object, size_t n)
{
	struct store_bucket *bucket = (struct store_bucket *)object->bucket;

	pthread_mutex_lock(&bucket->stores->lock);
	bucket->status.used_bytes += n;
	pthread_mutex_unlock(&bucket->stores->lock);
}

void buckets_free(struct stores *stores)
{
	while (stores->buckets) {
		struct store_bucket *bucket = stores->buckets;

		stores->buckets = bucket->next;
		bucket_free(bucket);
	}
}
