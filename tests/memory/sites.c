/* The places of atomic operations in the explored code, from the program's debug information. */
#include "tests/memory/sites.h"

#include "tests/memory/explorer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CALLS = 256 };

/* A call; several are of one place, where its function is inlined. */
static struct call {
	uintptr_t at;
	struct site *site;
} call[CALLS];
static unsigned calls;
static struct site site[CALLS];
static unsigned sites;
static const struct site *weak; /* the weakened one */
static int weak_order;

/* The place at @line ("/…/proto/ring.h:210 (…)"), in @function. */
static struct site *site_at(char *line, const char *function)
{
	static const char *const room[] = {"/proto/", "/client/", "/daemon/", "/tests/"};
	const char *file = line;

	line[strcspn(line, " \n")] = 0;
	for (unsigned i = 0; i < 4 && file == line; i++)
		if (strstr(line, room[i]))
			file = strstr(line, room[i]) + 1;
	for (unsigned i = 0; i < sites; i++)
		if (strcmp(site[i].line, file) == 0)
			return &site[i];
	snprintf(site[sites].line, sizeof(site[0].line), "%.90s", file);
	snprintf(site[sites].function, sizeof(site[0].function), "%.*s",
		(int)strcspn(function, "\n"), function);
	site[sites].order = -1;
	return &site[sites++];
}

bool sites_find(void)
{
	char command[512], function[256], line[512];
	struct site *made = NULL;
	FILE *f;

	/* Two addresses a call: its own, for the line, and the one after it, to which it returns.
	 * With -i, the innermost function comes first. */
	char path[256] = "";

	if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0)
		return false;
	snprintf(command, sizeof(command),
		"objdump -d --no-show-raw-insn %s | awk '/(call|bl) .*<__tsan_atomic/ {call = $1; "
		"getline; print call; print $1}' | tr -d : | addr2line -a -f -i -e %s",
		path, path);
	f = popen(command, "r");
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f)) {
		if (strncmp(line, "0x", 2) != 0)
			continue; /* the callers of an inlined function */

		uintptr_t at = strtoull(line, NULL, 16);

		if (!fgets(function, sizeof(function), f) || !fgets(line, sizeof(line), f))
			break;
		if (!made) {
			made = site_at(line, function);
		} else {
			call[calls++] = (struct call){at, made};
			made = NULL;
		}
		if (calls == CALLS)
			return false;
	}
	return pclose(f) == 0 && calls > 0;
}

static struct site *find(uintptr_t at)
{
	unsigned lo = 0, hi = calls;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (call[mid].at < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < calls && call[lo].at == at ? call[lo].site : NULL;
}

int sites_order(uintptr_t at, enum operation_kind kind, int order)
{
	struct site *s = find(at);

	if (!s) {
		fflush(stdout);
		fprintf(stderr, "memory: a call at %#lx is not in the list\n", at);
		abort();
	}
	s->kind = kind;
	s->order = order;
	return s == weak ? weak_order : order;
}

const char *sites_line(uintptr_t at)
{
	const struct site *s = find(at);

	return s ? s->line : "";
}

void sites_weaken(const struct site *s, int order)
{
	weak = s;
	weak_order = order;
}

const struct site *sites_all(unsigned *n)
{
	*n = sites;
	return site;
}
