/* A session can leave while its thread waits for a frame that another session's thread decodes. */
#include "daemon/shard/ahead.h"
#include "daemon/shard/bytes_object.h"
#include "daemon/shard/frames.h"
#include "daemon/shard/zstd_decode.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { FRAME_BYTES = 1000 };

/* A server that never answers, and a zstd file there of one frame. */
struct silent {
	int listener;
	char url[64];
	struct stores *stores;
	struct objects objects;
	struct zstd_frame frame[2];
	struct zstd_source source;
};

struct reader {
	const struct silent *silent;
	uint32_t session;
	pthread_t thread;
	_Atomic bool done;
	struct fault fault;
};

static bool find(const void *context, const char *url, struct object *object)
{
	const struct silent *s = context;
	struct fault fault;

	*object = (struct object){.etag = "e", .size = FRAME_BYTES};
	object->bucket = store_bucket(s->stores, url, &object->key, &fault);
	return object->bucket;
}

static void open_silent(struct silent *s)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct store_options options = {.memory_bytes = 1 << 20};
	socklen_t n = sizeof(at);
	struct ahead *ahead = ahead_new();
	struct fault fault;

	s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(s->listener, (struct sockaddr *)&at, n), 0);
	assert_int_equal(listen(s->listener, 100), 0);
	assert_int_equal(getsockname(s->listener, (struct sockaddr *)&at, &n), 0);
	snprintf(s->url, sizeof(s->url), "https://127.0.0.1:%d/a.bin.zst", ntohs(at.sin_port));
	s->stores = store_open(&options, &fault);
	assert_non_null(s->stores);
	s->objects = (struct objects){.stores = s->stores, .find = find, .context = s};
	assert_true(bytes_object_open(&s->objects, s->url, ahead, &s->source.file, &fault));
	ahead_end(ahead); /* as when the shard is open */
	ahead_free(ahead);
	s->frame[0] = (struct zstd_frame){.length = FRAME_BYTES};
	s->frame[1] = (struct zstd_frame){.begin = FRAME_BYTES};
	s->source.frames = s->source.share = frames_new(1 << 20);
	s->source.frame = s->frame;
	s->source.count = 1;
}

static void close_silent(struct silent *s)
{
	frames_free(s->source.frames);
	bytes_close(s->source.file);
	store_stop(s->stores);
	store_close(s->stores);
	close(s->listener);
}

static void *read_frame(void *argument)
{
	struct reader *r = argument;
	char byte;

	store_on_behalf(r->session);
	if (frames_read(&r->silent->source, 0, 0, &byte, 1, &r->fault))
		r->fault.code = FAULT_NONE;
	r->done = true;
	return NULL;
}

static void begin(struct reader *r, const struct silent *s, uint32_t session)
{
	r->silent = s;
	r->session = session;
	assert_int_equal(pthread_create(&r->thread, NULL, read_frame, r), 0);
}

static void end(struct reader *r)
{
	pthread_join(r->thread, NULL);
	assert_int_equal(r->fault.code, FAULT_IO);
	assert_int_equal(r->fault.error, ECANCELED);
}

static void test_a_session_leaves_while_another_decodes(void **state)
{
	static struct silent silent;
	struct reader first = {.session = 1}, second = {.session = 2};
	char text[100];

	(void)state;
	open_silent(&silent);
	begin(&first, &silent, 1);
	while (store_waits(silent.stores, 1, text, sizeof(text)) == 0)
		usleep(1000); /* it reads the frame, which nobody sends */
	begin(&second, &silent, 2);
	usleep(1000); /* in most runs it waits for the first one by now; otherwise later */
	store_cancel(silent.stores, 2);
	end(&second);
	assert_false(first.done);
	store_cancel(silent.stores, 1);
	end(&first);
	close_silent(&silent);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_session_leaves_while_another_decodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
