/*
 * store-cat [-c CONFIG] [-s SECONDS] [-w SECONDS] load|list URL [OTHER]: prints an object, or the
 * objects below a prefix as lines "KEY<tab>SIZE<tab>ETAG". The credentials of the URL OTHER are
 * looked for meanwhile. With -s it loads the object again and again for
 * so many seconds and prints how often. Then standard error gets the provider of the credentials
 * and the number of GETs. With -w faults that can heal are waited for so long. A fault is one line;
 * exit status 1.
 */
#include "daemon/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 << 20 };

static void put_line(const char *line)
{
	fprintf(stderr, "%s\n", line);
}

static bool put(void *context, const struct object *object)
{
	(void)context;
	printf("%s\t%llu\t%s\n", object->key, (unsigned long long)object->size,
		object->etag ? object->etag : "");
	return true;
}

static bool load(struct stores *stores, const struct store_bucket *bucket, const char *key,
	int seconds, struct fault *fault)
{
	time_t end = time(NULL) + seconds;
	unsigned times = 0;
	char *body;
	size_t n;

	do {
		body = store_load(stores, bucket, key, MOST, &n, fault);
		if (body && !seconds)
			fwrite(body, 1, n, stdout);
		free(body);
		times++;
		if (seconds)
			usleep(10000);
	} while (body && time(NULL) < end);
	if (body && seconds)
		printf("%u\n", times);
	return body != NULL;
}

static bool run(
	struct stores *stores, const char *what, const char *url, int seconds, struct fault *fault)
{
	const char *key;
	const struct store_bucket *bucket = store_bucket(stores, url, &key, fault);

	if (!bucket)
		return false;
	return strcmp(what, "list") == 0 ? store_list(stores, bucket, key, put, NULL, fault)
					 : load(stores, bucket, key, seconds, fault);
}

int main(int argc, char **argv)
{
	static struct store_status status;
	struct config *config = NULL;
	struct fault fault;
	int option, seconds = 0, patience = 20;

	while ((option = getopt(argc, argv, "c:s:w:")) != -1) {
		if (option == 's')
			seconds = atoi(optarg);
		else if (option == 'w')
			patience = atoi(optarg);
		else if (option != 'c' || !(config = config_load(optarg, &fault)))
			return option == 'c' ? (fprintf(stderr, "%s\n", fault.text), 1) : 2;
	}
	if (optind + 2 != argc && optind + 3 != argc)
		return 2;
	const struct store_options options = {.config = config,
		.memory_bytes = MOST,
		.patience_ms = 1000L * patience,
		.log = put_line};
	struct stores *stores = store_open(&options, &fault);
	const char *key, *other = argv[optind + 2];
	bool done = stores && (!other || store_bucket(stores, other, &key, &fault)) &&
		    run(stores, argv[optind], argv[optind + 1], seconds, &fault);

	fflush(stdout);
	if (!done)
		fprintf(stderr, "%s\n", fault.text);
	else if (store_status(stores, other ? 1 : 0, &status))
		fprintf(stderr, "%s: %s: %llu GETs\n", status.name, status.provider,
			(unsigned long long)status.requests);
	if (stores)
		store_stop(stores);
	store_close(stores);
	config_free(config);
	return done ? 0 : 1;
}
