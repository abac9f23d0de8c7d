/*
 * tokctl: one table of subcommands.
 */
#include "client/ctl/common/ctl.h"
#include "daemon/shard/bytes.h"
#include "proto/version.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *arguments;
	const char *help;
};

#define REQUEST " [--run RUN] [--timeout S] [--socket P] [-c FILE] [--json]"

static const struct command commands[] = {
	{"plan", ctl_plan,
		"-c FILE STREAM --from I --count N | --step N --world W --micro B [--rank R] "
		"[--from I] "
		"[--cursor F... | --run RUN] [--tokens] [--json]",
		"the order of a stream, or what a step gave to each rank, computed without a "
		"daemon"},
	{"when", ctl_when,
		"-c FILE STREAM --dataset D --shard S --offset T [--tokens N] [--epoch E] "
		"[--cursor F... | --run RUN] [--json]",
		"at which positions tokens of a shard are served"},
	{"inspect", ctl_inspect,
		"[-c FILE] [--input-format F] [--input-dtype u16|u32|...] [--input-column C] "
		"[--deep] "
		"[--manifest FILE] PATH... [--json]",
		"what shards hold, and what is wrong with them; --deep reads all of it"},
	{"pack", ctl_pack,
		"IN... OUT --format flat|zstd|megatron [--dtype u16|u32] [--shards N] [--eos ID] "
		"[--level L] [--frame BYTES] [--input-format F] [--input-dtype u16|u32|...] "
		"[--input-column C] [--json]",
		"shards of any format made into a directory of shards, or one file, of another"},
	{"cat", ctl_cat,
		"STREAM --rank R --world W --micro B --batches N [--socket P] [--start "
		"begin|POSITION|TAG] "
		"[--cursor F] "
		"[--cursor-out F] [--record FILE] [--run RUN] [--peer P] [--slots N] [-c FILE]",
		"attach like a trainer and write raw tokens to stdout"},
	{"cursor", ctl_cursor,
		"new -c FILE STREAM -o G | show F [--json] | diff F G [--json] | seek F --to "
		"POSITION -o G | "
		"skip F --samples N -o G | mix F [--at POSITION] D=W... -o G | add F -c FILE -o G "
		"| "
		"remove F D [--at POSITION] -o G | schedule F -c FILE -o G; edits take --json, too",
		"edits of a cursor, offline"},
	{"verify", ctl_verify,
		"-c FILE STREAM RECORD... [--from I] [--to J] [--cursor F... | --run RUN] [--json]",
		"prove from trainers' records that nothing was repeated, lost or altered; what was "
		"taken "
		"counts, or with commit() what was committed"},
	{"status", ctl_status, "[--socket P] [-c FILE] [--json]", "what a running daemon serves"},
	{"top", ctl_top, "[--interval S] [--count N] [--socket P] [-c FILE]",
		"the same again and again, with rates; q leaves"},
	{"mix", ctl_request, "STREAM D=W... [--at POSITION]" REQUEST,
		"have a running job change its mix: datasets that are not named get 0"},
	{"skip", ctl_request, "STREAM --samples N" REQUEST,
		"have a running job go on N samples further; those are never served"},
	{"checkpoint", ctl_request, "STREAM [--tag T]" REQUEST, "have a running job save"},
	{"drain", ctl_request, "STREAM [--tag T]" REQUEST, "have a running job save and leave"},
	{"rescale", ctl_request, "STREAM --world W [--micro B] [--tag T]" REQUEST,
		"have a running job save and leave, and show what each rank of the next one gets"},
};

enum { COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static void say(const char *text, va_list args)
{
	char *line;

	if (vasprintf(&line, text, args) < 0)
		line = NULL;
	fprintf(stderr, "tokctl: %s\n", line ? bytes_line(line) : strerror(ENOMEM));
	free(line);
}

void ctl_note(const char *text, ...)
{
	va_list args;

	va_start(args, text);
	say(text, args);
	va_end(args);
}

int ctl_fail(const char *text, ...)
{
	va_list args;

	va_start(args, text);
	say(text, args);
	va_end(args);
	return CTL_FAILED;
}

static const struct command *find(const char *name)
{
	for (int i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

int ctl_usage(const char *command, const char *text, ...)
{
	const struct command *c = find(command);
	va_list args;

	fprintf(stderr, "tokctl %s: ", command);
	va_start(args, text);
	vfprintf(stderr, text, args);
	va_end(args);
	fprintf(stderr, "; usage: tokctl %s %s\n", command, c ? c->arguments : "");
	return CTL_USAGE;
}

static int help(FILE *to)
{
	fputs("tokctl COMMAND …: looks at and edits what tokend serves\n\n", to);
	for (int i = 0; i < COMMANDS; i++)
		fprintf(to, "  %-10s %s\n             tokctl %s %s\n", commands[i].name,
			commands[i].help, commands[i].name, commands[i].arguments);
	fputs("\nExit status: 0 done, 1 failed or not so, 2 usage. --json prints one object a "
	      "line.\n",
		to);
	return to == stdout ? CTL_OK : CTL_USAGE;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return help(stderr);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0)
		return help(stdout);
	if (strcmp(argv[1], "--version") == 0) {
		puts("tokctl " TOKEND_VERSION);
		return CTL_OK;
	}
	const struct command *c = find(argv[1]);

	if (!c) {
		ctl_fail("'%s' is no command; `tokctl --help` lists them", argv[1]);
		return CTL_USAGE;
	}
	if (argc == 3 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
		printf("usage: tokctl %s %s\n%s\n", c->name, c->arguments, c->help);
		return CTL_OK;
	}
	return c->run(argc - 1, argv + 1);
}
