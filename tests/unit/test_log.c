/* The log never waits for its reader, counts the lines that it drops, and limits each user's lines
 * separately. */
#include "daemon/control/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROOM = 1 << 20 };

struct pipe {
	int reader, writer, stderr_fd;
	char text[ROOM];
};

static int set_up(void **state)
{
	struct pipe *p = calloc(1, sizeof(*p));
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	p->reader = fd[0];
	p->writer = fd[1];
	fcntl(p->reader, F_SETFL, O_NONBLOCK);
	log_flush();
	p->stderr_fd = dup(STDERR_FILENO);
	dup2(p->writer, STDERR_FILENO);
	*state = p;
	return 0;
}

static int tear_down(void **state)
{
	struct pipe *p = *state;

	dup2(p->stderr_fd, STDERR_FILENO);
	close(p->stderr_fd);
	close(p->reader);
	close(p->writer);
	free(p);
	return 0;
}

/* Reads the log until @words; fails after 10 s. */
static void read_until(struct pipe *p, const char *words)
{
	size_t n = strlen(p->text);

	for (int tries = 0; !strstr(p->text, words); tries++) {
		ssize_t got = read(p->reader, p->text + n, ROOM - 1 - n);

		n += got > 0 ? (size_t)got : 0;
		if (got <= 0)
			usleep(10000);
		assert_true(tries < 1000 || strstr(p->text, words));
	}
}

static unsigned count(const char *text, const char *words)
{
	unsigned n = 0;

	for (; (text = strstr(text, words)); text++)
		n++;
	return n;
}

/* Nobody reads: 1,000 calls return. Afterwards, written and lost lines add up to 1,000. */
static void test_log_never_waits_for_its_reader(void **state)
{
	enum { LINES = 1000 };
	struct pipe *p = *state;
	unsigned lost = 0;

	fcntl(p->writer, F_SETPIPE_SZ, 4096);
	for (int i = 0; i < LINES; i++)
		log_line(LOG_NOTE, "line %d %0200d", i, 0);
	log_flush(); /* gives up after a second */
	read_until(p, "log lines were lost");
	const char *number = strstr(p->text, " log lines were lost");

	while (number[-1] >= '0' && number[-1] <= '9')
		number--;
	lost = (unsigned)strtoul(number, NULL, 10);
	assert_true(lost > 0 && lost < LINES);
	assert_int_equal(count(p->text, ": line ") + lost, LINES);
}

/* Control characters in a client's text cannot end a line. */
static void test_clients_cannot_end_a_line(void **state)
{
	struct pipe *p = *state;
	char text[3000];

	memset(text, 'x', sizeof(text));
	memcpy(text, "a\nb\x1b[2J", 7);
	text[sizeof(text) - 1] = 0;
	log_line(LOG_NOTE, "%s", text);
	log_flush();
	read_until(p, "\n");
	assert_int_equal(count(p->text, "\n"), 1);
	assert_non_null(strstr(p->text, "tokend: a?b?[2Jxx"));
	assert_true(strlen(p->text) < 2048);
}

/* The last errors and warnings are kept, whether or not anyone reads the log. */
static void test_last_faults_are_kept(void **state)
{
	struct pipe *p = *state;
	struct log_fault fault[LOG_FAULTS];

	/* So the writer cannot catch up and warn of lost lines, which would be a fault, too. */
	fcntl(p->writer, F_SETPIPE_SZ, 4096);
	for (int i = 0; i < 600; i++) { /* more than wait to be written */
		log_line(LOG_WARNING, "fault %d\n", i);
		log_line(LOG_NOTE, "note %d", i);
	}
	log_line(LOG_ERROR, "%0*d", 3000, 7);
	assert_int_equal(log_faults(fault), LOG_FAULTS);
	assert_int_equal(fault[0].level, LOG_ERROR);
	assert_int_equal(strlen(fault[0].text), LOG_FAULT_BYTES - 1);
	assert_string_equal(fault[1].text, "fault 599?");
	assert_string_equal(fault[LOG_FAULTS - 1].text, "fault 581?");
	assert_true(fault[1].at > 0);
	assert_int_equal(fault[1].level, LOG_WARNING);
	read_until(p, "log lines were lost");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_log_never_waits_for_its_reader, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_clients_cannot_end_a_line, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_last_faults_are_kept, set_up, tear_down),
	};

	unsetenv("JOURNAL_STREAM");
	log_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
