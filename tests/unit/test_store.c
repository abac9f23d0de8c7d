/*
 * Reads of objects: shared GETs, merged neighbours, kept answers, bounded memory, turns, and
 * cancelling. The server runs in the test, because the test decides when it answers.
 */
#include "daemon/store/store.h"

#include "tests/unit/http_store.h"

#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

enum { WINDOW = 4096, SESSIONS = 8, MOST = 1024 };

struct place {
	struct http_store *server;
	struct config_store store;
	struct config config;
	struct stores *stores;
	struct object object;
	int news;
	char endpoint[64];
	uint8_t *to;
	struct store_done done[MOST];
	unsigned dones;
};

static void on_news(void *context)
{
	eventfd_write(((struct place *)context)->news, 1);
}

/* @cache: a directory, or NULL. */
static struct place *place_open_cached(
	uint64_t memory_bytes, uint32_t connections, const char *cache)
{
	struct place *p = calloc(1, sizeof(*p));
	struct fault fault;

	p->server = http_store_open();
	snprintf(p->endpoint, sizeof(p->endpoint), "http://127.0.0.1:%d",
		http_store_port(p->server));
	p->store = (struct config_store){.name = "lab",
		.endpoint = p->endpoint,
		.anonymous = true,
		.connections = connections};
	p->config = (struct config){.path = "tokend.yaml",
		.store = &p->store,
		.stores = 1,
		.cache_dir = (char *)cache,
		.cache_bytes = 64 << 20};
	p->news = eventfd(0, EFD_CLOEXEC);
	p->to = calloc(MOST, WINDOW);
	p->stores = store_open(
		&(struct store_options){
			.config = &p->config, .memory_bytes = memory_bytes, .cache = cache},
		&fault);
	if (!p->stores)
		fail_msg("%s", fault.text);
	store_listen(p->stores, on_news, p);
	p->object = (struct object){.etag = "e", .size = HTTP_STORE_SIZE};
	p->object.bucket = store_bucket(p->stores, "lab://corpus/web.bin", &p->object.key, &fault);
	if (!p->object.bucket)
		fail_msg("%s", fault.text);
	return p;
}

static struct place *place_open(uint64_t memory_bytes, uint32_t connections)
{
	return place_open_cached(memory_bytes, connections, NULL);
}

static void place_close(struct place *p)
{
	http_store_hold(p->server, false);
	store_close(p->stores);
	http_store_close(p->server);
	close(p->news);
	free(p->to);
	free(p);
}

static void fetch(struct place *p, unsigned tag, uint32_t session, uint64_t at)
{
	store_fetch(p->stores, &(struct store_fetch){.tag = tag,
				       .session = session,
				       .object = p->object,
				       .at = at,
				       .n = WINDOW,
				       .to = p->to + (size_t)tag * WINDOW});
}

static void take(struct place *p, unsigned n)
{
	for (p->dones = 0; p->dones < n;) {
		unsigned got = store_take(p->stores, p->done + p->dones, n - p->dones);
		eventfd_t unused;

		if (got == 0)
			eventfd_read(p->news, &unused);
		p->dones += got;
	}
}

static bool right(const struct place *p, unsigned tag, uint64_t at)
{
	for (unsigned i = 0; i < WINDOW; i++)
		if (p->to[(size_t)tag * WINDOW + i] != http_store_byte(at + i))
			return false;
	return true;
}

static struct store_status status(const struct place *p)
{
	struct store_status s;

	assert_true(store_status(p->stores, 0, &s));
	assert_false(store_status(p->stores, 1, &s) && s.requests == 0);
	store_status(p->stores, 0, &s);
	return s;
}

static void test_peers_share_a_get(void **state)
{
	struct place *p = place_open(16 << 20, 32);

	(void)state;
	for (uint32_t s = 0; s < SESSIONS; s++) { /* each in its own time */
		for (unsigned i = 0; i < 10; i++)
			fetch(p, s * 10 + i, s, 100 + i * UINT64_C(1000000));
		store_commit(p->stores);
		if (s >= SESSIONS / 2) /* half of them while the first GETs are in flight */
			take(p, s == SESSIONS / 2 ? 10 * (s + 1) : 10);
	}
	for (unsigned tag = 0; tag < SESSIONS * 10; tag++)
		assert_true(right(p, tag, 100 + tag % 10 * UINT64_C(1000000)));
	assert_int_equal(http_store_gets(p->server), 10);
	assert_int_equal(status(p).used_bytes, SESSIONS * 10 * WINDOW);
	assert_int_equal(status(p).bytes, 10 * WINDOW);
	place_close(p);
}

static void test_neighbours_of_a_commit_are_one_get(void **state)
{
	struct place *p = place_open(16 << 20, 32);
	const uint64_t at[] = {20 * WINDOW, 0, WINDOW, 5 * WINDOW, 1000 * WINDOW, WINDOW};

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		fetch(p, i, 0, at[i]);
	store_commit(p->stores);
	take(p, 6);
	for (unsigned i = 0; i < 6; i++)
		assert_true(right(p, i, at[i]));
	assert_int_equal(http_store_gets(p->server), 3);
	for (unsigned i = 0; i < 6; i++) /* windows of a merged GET are kept one by one */
		fetch(p, 10 + i, 1, at[i]);
	store_commit(p->stores);
	take(p, 6);
	for (unsigned i = 0; i < 6; i++)
		assert_true(right(p, 10 + i, at[i]));
	assert_int_equal(http_store_gets(p->server), 3);
	place_close(p);
}

static void test_another_etag_is_another_object(void **state)
{
	struct place *p = place_open(16 << 20, 32);
	struct fault fault;
	uint8_t byte;

	(void)state;
	assert_true(store_read(p->stores, &p->object, 7, &byte, 1, &fault));
	p->object.etag = NULL;
	assert_true(store_read(p->stores, &p->object, 7, &byte, 1, &fault));
	assert_int_equal(byte, http_store_byte(7));
	assert_int_equal(http_store_gets(p->server), 2);
	place_close(p);
}

static void test_memory_is_bounded(void **state)
{
	enum { FIT = 6 }; /* below the first in-flight limit */
	struct place *p = place_open(FIT * (WINDOW + 512), 32);
	unsigned gets;

	(void)state;
	http_store_hold(p->server, true);
	for (unsigned i = 0; i < 64; i++)
		fetch(p, i, 0, i * UINT64_C(1000000));
	store_commit(p->stores);
	http_store_wait(p->server, FIT);
	assert_true(status(p).in_flight <= FIT);
	http_store_hold(p->server, false);
	take(p, 64);
	for (unsigned i = 0; i < 64; i++)
		assert_true(right(p, i, i * UINT64_C(1000000)));
	gets = http_store_gets(p->server);
	assert_int_equal(gets, 64);
	fetch(p, 0, 0, 63 * UINT64_C(1000000)); /* kept */
	fetch(p, 1, 0, 0);			/* dropped */
	store_commit(p->stores);
	take(p, 2);
	assert_int_equal(http_store_gets(p->server), gets + 1);
	place_close(p);
}

static void test_a_read_larger_than_the_memory(void **state)
{
	struct place *p = place_open(64 * 1024, 32);
	size_t n = 20 * 1024 * 1024;
	uint8_t *to = malloc(n);
	struct fault fault;

	(void)state;
	assert_true(store_read(p->stores, &p->object, 12345, to, n, &fault));
	for (size_t i = 0; i < n; i++)
		assert_true(to[i] == http_store_byte(12345 + i));
	free(to);
	place_close(p);
}

static void test_sessions_take_turns(void **state)
{
	struct place *p = place_open(16 << 20, 1);
	unsigned i;

	(void)state;
	http_store_hold(p->server, true);
	for (i = 0; i < 50; i++)
		fetch(p, i, 1, i * UINT64_C(1000000));
	store_commit(p->stores);
	http_store_wait(p->server, 1);
	fetch(p, 50, 2, 60 * UINT64_C(1000000));
	store_commit(p->stores);
	http_store_hold(p->server, false);
	take(p, 51);
	assert_int_equal(http_store_at(p->server, 0), 0);
	for (i = 0; http_store_at(p->server, i) != 60 * UINT64_C(1000000); i++)
		;
	assert_true(i <= 2);
	place_close(p);
}

struct reading {
	struct place *place;
	struct fault fault;
	bool read;
};

static void *read_blocked(void *argument)
{
	struct reading *r = argument;
	uint8_t byte;

	store_on_behalf(7);
	r->read = store_read(r->place->stores, &r->place->object, 1, &byte, 1, &r->fault);
	return NULL;
}

static void test_cancelled_reads_return_while_the_store_hangs(void **state)
{
	struct place *p = place_open(16 << 20, 32);
	struct reading reading = {.place = p};
	pthread_t thread;

	(void)state;
	http_store_hold(p->server, true);
	pthread_create(&thread, NULL, read_blocked, &reading);
	fetch(p, 0, 7, 1000000);
	fetch(p, 1, 8, 1000000);
	fetch(p, 2, 7, 2000000);
	store_commit(p->stores);
	http_store_wait(p->server, 3);
	fetch(p, 3, 7, 3000000); /* not committed yet */
	store_cancel(p->stores, 7);
	pthread_join(thread, NULL);
	assert_true(!reading.read && reading.fault.error == ECANCELED);
	store_commit(p->stores);
	take(p, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_not_equal(p->done[i].tag, 1);
		assert_int_equal(p->done[i].fault->error, ECANCELED);
	}
	assert_true(p->to[0] == 0 && p->to[2 * WINDOW] == 0);

	/* GETs in flight end, and are kept for the session that comes back. */
	store_allow(p->stores, 7);
	fetch(p, 4, 7, 2000000);
	store_commit(p->stores);
	http_store_hold(p->server, false);
	take(p, 2);
	assert_true(right(p, 1, 1000000) && right(p, 4, 2000000));
	assert_int_equal(http_store_gets(p->server), 3);
	place_close(p);
}

static void test_a_stop_ends_all_reads(void **state)
{
	struct place *p = place_open(16 << 20, 32);
	struct reading reading = {.place = p};
	pthread_t thread;

	(void)state;
	http_store_hold(p->server, true);
	pthread_create(&thread, NULL, read_blocked, &reading);
	fetch(p, 0, 1, 5000000);
	store_commit(p->stores);
	http_store_wait(p->server, 2);
	store_stop(p->stores);
	pthread_join(thread, NULL);
	assert_int_equal(reading.fault.error, ECANCELED);
	take(p, 1);
	assert_int_equal(p->done[0].fault->error, ECANCELED);
	read_blocked(&reading);
	assert_int_equal(reading.fault.error, ECANCELED);
	place_close(p);
}

/* A core must not have secrets, whichever store is used first. */
/* A tool with a thousand shards waits for the store once. */
static void test_a_store_that_is_away_is_waited_for_once(void **state)
{
	struct place *p = place_open(1 << 20, 8);
	struct store_status status;
	uint64_t requests[2];
	struct fault fault;

	(void)state;
	snprintf(p->endpoint, sizeof(p->endpoint), "http://127.0.0.1:1");

	struct stores *away = store_open(
		&(struct store_options){
			.config = &p->config, .memory_bytes = 1 << 20, .patience_ms = 400},
		&fault);

	assert_non_null(away);
	p->object.bucket = store_bucket(away, "lab://corpus/web.bin", &p->object.key, &fault);
	for (unsigned i = 0; i < 2; i++) {
		assert_false(
			store_read(away, &p->object, i * UINT64_C(1000000), p->to, WINDOW, &fault));
		assert_int_equal(fault.error, EREMOTEIO);
		assert_true(store_status(away, 0, &status));
		requests[i] = status.requests;
	}
	/* Pauses of up to 100, 200 and 100 ms make four GETs or more. */
	assert_in_range(requests[1], requests[0] + 1, requests[0] + 2);
	store_close(away);
	place_close(p);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

/* Whether a piece is fetched or in the cache, the bytes of each read count once. */
static void test_reads_of_the_cache_are_used_bytes(void **state)
{
	char directory[] = "/tmp/tokend-cached-XXXXXX";
	struct place *p = place_open_cached(16 << 20, 4, mkdtemp(directory));
	uint64_t used = 0;
	struct fault fault;

	(void)state;
	p->object.piece = 64 << 10;
	for (int warm = 0; warm < 2; warm++) {
		const struct store_fetch fetch = {.object = p->object, .at = 100, .n = WINDOW};
		enum store_pin pin;
		int fd;

		assert_true(store_read(p->stores, &p->object, 100, p->to, WINDOW, &fault));
		assert_int_equal(status(p).used_bytes, used += WINDOW);
		pin = store_pin(p->stores, &fetch, &fd);
		assert_int_equal(pin, STORE_PINNED);
		store_unpin(p->stores, fd, fetch.at, fetch.n);
		assert_int_equal(status(p).used_bytes, used += WINDOW);
	}
	place_close(p);
	nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void test_credentials_end_core_dumps(void **state)
{
	struct place *p = place_open(1 << 20, 1);
	struct config_store stores[] = {p->store, {.name = "keys", .endpoint = p->endpoint}};
	struct fault fault;
	const char *key;

	(void)state;
	p->config.store = stores;
	p->config.stores = 2;
	assert_int_equal(prctl(PR_GET_DUMPABLE), 1); /* the first one is anonymous */
	assert_non_null(store_bucket(p->stores, "keys://corpus/web.bin", &key, &fault));
	assert_int_equal(prctl(PR_GET_DUMPABLE), 0);
	place_close(p);
	prctl(PR_SET_DUMPABLE, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_peers_share_a_get),
		cmocka_unit_test(test_neighbours_of_a_commit_are_one_get),
		cmocka_unit_test(test_another_etag_is_another_object),
		cmocka_unit_test(test_memory_is_bounded),
		cmocka_unit_test(test_a_read_larger_than_the_memory),
		cmocka_unit_test(test_sessions_take_turns),
		cmocka_unit_test(test_cancelled_reads_return_while_the_store_hangs),
		cmocka_unit_test(test_a_stop_ends_all_reads),
		cmocka_unit_test(test_a_store_that_is_away_is_waited_for_once),
		cmocka_unit_test(test_reads_of_the_cache_are_used_bytes),
		cmocka_unit_test(test_credentials_end_core_dumps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
