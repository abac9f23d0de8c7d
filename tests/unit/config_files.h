/* A config file in a temporary directory for each test. */
#ifndef TOKEND_TEST_CONFIG_FILES_H
#define TOKEND_TEST_CONFIG_FILES_H

#include "daemon/config/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAD "streams:\n  train:\n    seed: 1\n    seq_len: 8\n    datasets:\n" /* lines 1 to 5 */
#define WEB  HEAD "      - {name: web, path: web" /* line 6, without its "}" */
#define GOOD WEB "}\n"

struct place {
	char directory[96];
	char file[128];
};

static inline int set_up(void **state)
{
	struct place *p = calloc(1, sizeof(*p));

	assert_non_null(p);
	snprintf(p->directory, sizeof(p->directory), "%s/tokend-config-XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(p->directory));
	snprintf(p->file, sizeof(p->file), "%s/t.yaml", p->directory);
	*state = p;
	return 0;
}

static inline int tear_down(void **state)
{
	struct place *p = *state;

	unlink(p->file);
	assert_int_equal(rmdir(p->directory), 0);
	free(p);
	return 0;
}

static inline void write_bytes(const struct place *p, const char *text, size_t n)
{
	FILE *file = fopen(p->file, "w");

	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static inline struct config *load(const struct place *p, const char *text, struct fault *fault)
{
	write_bytes(p, text, strlen(text));
	return config_load(p->file, fault);
}

static inline struct config *load_good(const struct place *p, const char *text)
{
	struct fault fault;
	struct config *config = load(p, text, &fault);

	if (!config)
		fail_msg("%s", fault.text);
	return config;
}

#endif
