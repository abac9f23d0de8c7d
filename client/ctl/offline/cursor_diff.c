/*
 * tokctl cursor diff: how two cursors differ. Of more, e.g. of the snapshots of a job's nodes:
 * which are the odd ones.
 */
#include "client/ctl/offline/cursor_diff.h"

#include "client/ctl/common/cursor_file.h"
#include "client/ctl/common/error.h"
#include "client/ctl/offline/cursor_compare.h"

#include <limits.h>
#include <stdlib.h>

enum { JSON, OPTIONS };

static const struct ctl_option options[OPTIONS] = {[JSON] = CTL_JSON_OPTION};

/* The cursors of the arguments. */
struct set {
	struct cursor *cursor;
	uint64_t *print; /* fingerprints: equal for equal cursors */
	char **path;
	int n;
};

static int alike(const struct set *set, int i)
{
	int count = 0;

	for (int j = 0; j < set->n; j++)
		count += set->print[j] == set->print[i];
	return count;
}

/* One of the cursors that are equal to more than half of all; 0 if there is none. */
static int usual(const struct set *set)
{
	for (int i = 0; i < set->n; i++)
		if (2 * alike(set, i) > set->n)
			return i;
	return 0;
}

static void put_odd(struct ctl_out *out, const struct set *set, int odd, int common, bool json)
{
	int others = alike(set, common) - 1;

	if (json) {
		ctl_put(out, "{\"odd\":");
		ctl_put_string(out, set->path[odd]);
		ctl_put(out, ",\"usual\":");
		ctl_put_string(out, set->path[common]);
		ctl_put(out, ",");
		ctl_put_pair(out, "alike", (uint64_t)others + 1);
		ctl_put(out, "}\n");
		return;
	}
	ctl_put_left(out, set->path[odd], 0);
	ctl_put(out, " differs from ");
	ctl_put_left(out, set->path[common], 0);
	if (others > 0) {
		ctl_put(out, " and ");
		ctl_put_number(out, (uint64_t)others);
		ctl_put(out, others == 1 ? " other" : " others");
	}
	ctl_put(out, ":\n");
}

/* True if all cursors are equal. */
static bool compare(struct ctl_out *out, const struct set *set, bool json)
{
	int common = usual(set);
	bool same = true;

	if (set->n == 2)
		return ctl_cursor_compare(out, &set->cursor[0], &set->cursor[1], json);
	for (int i = 0; i < set->n; i++) {
		if (set->print[i] == set->print[common])
			continue;
		put_odd(out, set, i, common, json);
		ctl_cursor_compare(out, &set->cursor[common], &set->cursor[i], json);
		same = false;
	}
	return same;
}

static bool read_all(struct set *set)
{
	for (int i = 0; i < set->n; i++) {
		if (!ctl_cursor_read(&set->cursor[i], set->path[i], NULL))
			return false;
		set->print[i] = cursor_fingerprint(&set->cursor[i], 1, 1);
	}
	return true;
}

static int diff(const struct ctl_arguments *a)
{
	struct set set = {.path = a->argument, .n = a->arguments};
	struct ctl_out out = {0};
	int status = CTL_FAILED;

	set.cursor = calloc((size_t)set.n, sizeof(*set.cursor));
	set.print = calloc((size_t)set.n, sizeof(*set.print));
	if (!set.cursor || !set.print)
		ctl_fail("out of memory");
	else if (read_all(&set))
		status = ctl_finish(
			&out, compare(&out, &set, ctl_given(a, JSON)) ? CTL_OK : CTL_FAILED);
	for (int i = 0; set.cursor && i < set.n; i++)
		cursor_free(&set.cursor[i]);
	free(set.cursor);
	free(set.print);
	return status;
}

const struct ctl_command ctl_cursor_diff = {
	.name = "cursor diff",
	.arguments = "LEFT RIGHT...",
	.least = 2,
	.most = INT_MAX,
	.help = "print how cursors differ, and which is the odd one of several",
	.about = "Prints one line per difference. Of two cursors, LEFT's value is first. Of more, "
		 "it names those that differ from the majority, or from LEFT if there is none; the "
		 "majority's value is first. The exit status is 1 if the cursors differ.",
	.examples = CTL_EXAMPLES(
		{"compare two cursors", "tokctl cursor diff begin.cursor run.cursor || "
					"echo they differ"},
		{"find the node whose snapshot differs",
			"tokctl cursor diff begin.cursor run.cursor run.cursor || true"}),
	.options = options,
	.count = OPTIONS,
	.run = diff,
};
