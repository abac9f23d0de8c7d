/*
 * Replies are matched with their queries: late replies and unrelated errors are not mistaken for
 * the reply. The daemon is the other end of a socket pair.
 */
#include "client/lib/map.h"
#include "client/lib/query.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static const uint64_t alive = 1;
static struct tokend t;
static struct packet packet;
static uint8_t out[LIMIT_PACKET_BYTES];
static struct mapping *mapping;
static int daemon_end;

static int setup(void **state)
{
	int fd[2];

	(void)state;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, fd) != 0)
		return -1;
	daemon_end = fd[0];
	mapping = calloc(1, sizeof(*mapping));
	packet.fds = 0;
	t = (struct tokend){.alive = &alive,
		.fd = fd[1],
		.mapping = mapping,
		.packet = &packet,
		.out = out,
		.serial = 5,
		.deadline_ms = 60000,
		.socket = "here"};
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	handle_lose(&t);
	close(daemon_end);
	free(mapping);
	return 0;
}

/* The daemon sends a cursor, or the error of a checkpoint if @cursor is NULL. @serial 0: none. */
static void send_reply(uint64_t serial, const char *cursor)
{
	static uint8_t buffer[LIMIT_PACKET_BYTES];
	struct wire w = {.op = cursor ? WIRE_DESCRIBED : WIRE_ERROR};
	struct fault fault;

	if (serial)
		wire_set(&w, WIRE_SERIAL, serial);
	if (cursor) {
		wire_set_text(&w, WIRE_CURSOR, cursor);
	} else {
		wire_set_code(&w, FAULT_CHECKPOINT);
		wire_set_text(&w, WIRE_FIELD, "tag");
		wire_set_text(&w, WIRE_TEXT, "not saved");
	}
	assert_true(link_send(daemon_end, &w, buffer, &fault));
}

static void assert_stream(const char *cursor)
{
	char got[16];

	assert_int_equal(tokend_stream(&t, got, sizeof(got)), strlen(cursor));
	assert_memory_equal(got, cursor, strlen(cursor));
}

static void late_replies_are_dropped(void **state)
{
	struct tokend_request *request = calloc(1, sizeof(*request));
	char got[16];

	(void)state;
	mapping->serials = true;
	send_reply(5, "old");
	send_reply(4, NULL);
	send_reply(6, "new");
	assert_stream("new");
	send_reply(7, NULL);
	assert_int_equal(tokend_stream(&t, got, sizeof(got)), TOKEND_EREFUSED);
	assert_string_equal(tokend_field(&t), "tag");
	assert_int_equal(t.failed, 0);
	send_reply(3, NULL);
	assert_int_equal(
		query_listen(&t), 0); /* an answer that is late, not an error of the stream */
	send_reply(8, "of another kind");
	assert_int_equal(tokend_request(&t, request), TOKEND_EPROTOCOL);
	assert_int_equal(t.failed, TOKEND_EPROTOCOL);
	free(request);
}

static void without_serials_replies_are_counted(void **state)
{
	(void)state;
	t.late = 2;
	send_reply(0, "old");
	send_reply(0, NULL);
	send_reply(0, "new");
	assert_stream("new");
	assert_int_equal(t.late, 0);
}

static unsigned warned;

static int count_warning(void *context, const char *line)
{
	(void)context;
	assert_non_null(strstr(line, "has not answered for 2 s"));
	warned++;
	return 0;
}

/* Its data thread still wakes the trainer. */
static void a_silent_daemon_ends_a_query(void **state)
{
	char got[16];

	(void)state;
	mapping->serials = true;
	t.deadline_ms = 2300;
	t.call.warn = count_warning;
	assert_int_equal(send(daemon_end, "", 1, 0), 1);
	assert_int_equal(tokend_stream(&t, got, sizeof(got)), TOKEND_ECONNECT);
	assert_int_equal(warned, 1);
	assert_int_equal(t.failed, 0);
	send_reply(6, "old");
	send_reply(7, "new");
	assert_stream("new");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(late_replies_are_dropped, setup, teardown),
		cmocka_unit_test_setup_teardown(a_silent_daemon_ends_a_query, setup, teardown),
		cmocka_unit_test_setup_teardown(
			without_serials_replies_are_counted, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
