#include "client/ctl/common/arguments.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define REQUEST " [--run RUN] [--timeout S] [--socket P] [-c FILE] [--json]"

const struct ctl_synopsis ctl_synopses[CTL_COMMANDS] = {
	{"plan",
		"-c FILE STREAM --from I --count N | --step N --world W --micro B [--rank R] "
		"[--from I] "
		"[--cursor F... | --run RUN] [--tokens] [--json]",
		"the order of a stream, or what a step gave to each rank, computed without a "
		"daemon"},
	{"when",
		"-c FILE STREAM --dataset D --shard S --offset T [--tokens N] [--epoch E] "
		"[--cursor F... | --run RUN] [--json]",
		"at which positions tokens of a shard are served"},
	{"inspect",
		"[-c FILE] [--input-format F] [--input-dtype u16|u32|...] [--input-column C] "
		"[--deep] "
		"[--manifest FILE] PATH... [--json]",
		"what shards hold, and what is wrong with them; --deep reads all of it"},
	{"pack",
		"IN... OUT --format flat|zstd|megatron [--dtype u16|u32] [--shards N] [--eos ID] "
		"[--level L] [--frame BYTES] [--input-format F] [--input-dtype u16|u32|...] "
		"[--input-column C] [--json]",
		"shards of any format made into a directory of shards, or one file, of another"},
	{"cat",
		"STREAM --rank R --world W --micro B --batches N [--socket P] [--start "
		"begin|POSITION|TAG] "
		"[--cursor F] "
		"[--cursor-out F] [--record FILE] [--run RUN] [--peer P] [--slots N] [-c FILE]",
		"attach like a trainer and write raw tokens to stdout"},
	{"cursor",
		"new -c FILE STREAM -o G | show F [--json] | diff F G [--json] | seek F --to "
		"POSITION -o G | "
		"skip F --samples N -o G | mix F [--at POSITION] D=W... -o G | add F -c FILE -o G "
		"| "
		"remove F D [--at POSITION] -o G | schedule F -c FILE -o G; edits take --json, too",
		"edits of a cursor, offline"},
	{"verify",
		"-c FILE STREAM RECORD... [--from I] [--to J] [--cursor F... | --run RUN] [--json]",
		"prove from trainers' records that nothing was repeated, lost or altered; what was "
		"taken "
		"counts, or with commit() what was committed"},
	{"status", "[--socket P] [-c FILE] [--json]", "what a running daemon serves"},
	{"top", "[--interval S] [--count N] [--socket P] [-c FILE]",
		"the same again and again, with rates; q leaves"},
	{"mix", "STREAM D=W... [--at POSITION]" REQUEST,
		"have a running job change its mix: datasets that are not named get 0"},
	{"skip", "STREAM --samples N" REQUEST,
		"have a running job go on N samples further; those are never served"},
	{"checkpoint", "STREAM [--tag T]" REQUEST, "have a running job save"},
	{"drain", "STREAM [--tag T]" REQUEST, "have a running job save and leave"},
	{"rescale", "STREAM --world W [--micro B] [--tag T]" REQUEST,
		"have a running job save and leave, and show what each rank of the next one gets"},
};

static const struct ctl_synopsis *find(const char *name)
{
	for (int i = 0; i < CTL_COMMANDS; i++)
		if (strcmp(ctl_synopses[i].name, name) == 0)
			return &ctl_synopses[i];
	return NULL;
}

int ctl_usage(const char *command, const char *text, ...)
{
	const struct ctl_synopsis *s = find(command);
	va_list args;

	fprintf(stderr, "tokctl %s: ", command);
	va_start(args, text);
	vfprintf(stderr, text, args);
	va_end(args);
	fprintf(stderr, "; usage: tokctl %s %s\n", command, s ? s->arguments : "");
	return CTL_USAGE;
}
