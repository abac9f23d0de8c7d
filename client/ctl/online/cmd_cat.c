/*
 * tokctl cat: the smallest trainer. It attaches and writes the tokens of its batches to stdout as
 * they are in the ring, so that anyone can print, compare or hash the data of a rank. It can also
 * write its cursor and a record.
 */
#include "client/ctl/online/talk.h"
#include "client/lib/tokend.h"

#include <errno.h>
#include <string.h>

static const struct ctl_option options[] = {
	{OPTION_NUMBER("rank", "R", 0, UINT64_MAX, "rank to attach as"), .required = true},
	{OPTION_NUMBER("world", "W", 0, UINT64_MAX, "number of ranks"), .required = true},
	{OPTION_NUMBER("micro", "B", 1, LIMIT_MICRO_BATCH, "rows per batch"), .required = true},
	{OPTION_NUMBER("batches", "N", 0, UINT64_MAX,
		"number of batches; default: to the end of the stream")},
	{CTL_SOCKET_OPTION},
	{CTL_CONFIG_OPTION},
	{OPTION_TEXT("start", "begin|POSITION|TAG",
		"where to begin: a position, or the checkpoint that the daemon saved as TAG; "
		"default: begin")},
	{OPTION_TEXT("cursor", "FILE", "begin at the cursor in this file")},
	{OPTION_TEXT("cursor-out", "FILE", "write the cursor after the last batch to this file")},
	{OPTION_TEXT("record", "FILE", "record the rows in this file, for `tokctl verify`")},
	{OPTION_TEXT("run", "RUN", "name of the run; default: tokctl")},
	{OPTION_NUMBER("peer", "P", 0, UINT32_MAX, "number of this process within its rank"),
		.preset = "0"},
	{OPTION_NUMBER(
		"slots", "N", 0, UINT32_MAX, "batches in the ring; default: the daemon decides")},
};

static bool copy(struct tokend *t, uint64_t batches)
{
	struct tokend_batch batch;
	int got = 1;

	for (uint64_t i = 0; i < batches && (got = tokend_next(t, &batch)) > 0; i++) {
		size_t n = (size_t)batch.rows * batch.window_tokens * batch.token_bytes;
		bool written = fwrite(batch.tokens, 1, n, stdout) == n && fflush(stdout) == 0;

		tokend_release(t, &batch);
		if (!written)
			return ctl_error("stdout: %s", strerror(errno));
	}
	return got >= 0 || ctl_error("%s", tokend_why(t));
}

static int cat(const struct ctl_arguments *a)
{
	const char *start = ctl_text(a, "start"), *record = ctl_text(a, "record"),
		   *to = ctl_text(a, "cursor-out");
	struct ctl_link link = {0};
	struct tokend_options o = {.size = sizeof(o),
		.socket = link.socket,
		.stream = a->argument[0],
		.run = ctl_given(a, "run") ? ctl_text(a, "run") : "tokctl",
		.rank = ctl_number(a, "rank", 0),
		.world = ctl_number(a, "world", 0),
		.micro_batch = (uint32_t)ctl_number(a, "micro", 0),
		.peer = (uint32_t)ctl_number(a, "peer", 0),
		.slots = (uint32_t)ctl_number(a, "slots", 0)};
	static char cursor[TOKEND_CURSOR_BYTES];
	char why[1500];
	struct tokend *t;
	bool ok;

	if (start && ctl_given(a, "cursor"))
		return ctl_usage(a->command, "--start and --cursor exclude each other");
	if (start && (strcmp(start, "begin") == 0 || wire_digits(start, &o.position)))
		o.start_at_position = 1;
	else
		o.tag = start;
	if (ctl_given(a, "cursor") && !(o.cursor = ctl_map(ctl_text(a, "cursor"), &o.cursor_bytes)))
		return CTL_FAILED;
	if (!ctl_choose(&link, a, NULL, NULL))
		return CTL_FAILED;
	if (tokend_attach(&t, &o, why, sizeof(why)) < 0)
		return ctl_fail("%s", why);
	ok = !record || tokend_record(t, record) == 0 || ctl_error("%s", tokend_why(t));
	ok = ok && copy(t, ctl_number(a, "batches", UINT64_MAX));
	if (to) /* also after a failure, to continue from there */
		ok = ctl_file_write(to, cursor, (size_t)tokend_cursor(t, cursor, sizeof(cursor))) &&
		     ok;
	if (record && tokend_record(t, NULL) < 0)
		ok = ctl_error("%s", tokend_why(t));
	tokend_detach(t);
	return ok ? CTL_OK : CTL_FAILED;
}

const struct ctl_command ctl_cat = {
	.name = "cat",
	.arguments = "STREAM",
	.help = "attach like a trainer and write the tokens of its batches to stdout",
	OPTIONS_ARE(options),
	.run = cat,
};
