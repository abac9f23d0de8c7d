#include "daemon/config/options.h"

#include "proto/phrases.h"
#include "proto/text.h"
#include "proto/version.h"
#include "proto/wire.h"

#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CONFIG, SOCKET, LINGER, PRIVATE, CHECK, VERSION, HELP, OPTIONS };
enum { HELP_COLUMN = 22, USAGE = 2 };

const struct option_row option_table[] = {
	[CONFIG] = {"config", 'c', "FILE", .required = true,
		.help = "the config file, see tokend.yaml(5)"},
	[SOCKET] = {"socket", .value = "PATH",
		.help = "listen here instead of at $TOKEND_SOCKET or the config's socket"},
	[LINGER] = {"linger", .value = "SECONDS", .least = 1, .most = UINT64_C(366) * 86400,
		.help = "exit after this time without a session; default: never"},
	[PRIVATE] = {"private", .value = "FD", .most = INT_MAX,
		.help = "the lock on PATH.lock, from a process that starts its own daemon"},
	[CHECK] = {"check", .help = "check the config and the shards, print the tokens that are "
				    "never served, and exit"},
	[VERSION] = {"version", .help = "print the version and exit"},
	[HELP] = {"help", 'h', .help = "print this text and exit"},
};
const unsigned option_rows = OPTIONS;

/* "tokend -c FILE [--check]" */
static void print_synopsis(void)
{
	fputs("tokend", stdout);
	for (int i = 0; i < VERSION; i++) {
		const struct option_row *o = &option_table[i];

		fputs(o->required ? " " : " [", stdout);
		if (o->letter)
			printf("-%c", o->letter);
		else
			printf("--%s", o->name);
		printf("%s%s%s", o->value ? " " : "", o->value ? o->value : "",
			o->required ? "" : "]");
	}
}

static void print_help(void)
{
	fputs("usage: ", stdout);
	print_synopsis();
	fputs("\nServes token shards to trainers on this node.\n\n", stdout);
	for (int i = 0; i < OPTIONS; i++) {
		const struct option_row *o = &option_table[i];
		char left[64], letter[8] = "    ", text[512], wrapped[WRAPPED_BYTES];

		if (o->letter)
			snprintf(letter, sizeof(letter), "-%c, ", o->letter);
		snprintf(left, sizeof(left), "  %s--%s %s", letter, o->name,
			o->value ? o->value : "");
		snprintf(text, sizeof(text), "%s", o->help);
		if (o->least > 0)
			snprintf(text + strlen(text), sizeof(text) - strlen(text),
				" (%" PRIu64 " to %" PRIu64 ")", o->least, o->most);
		printf("%-*s  ", HELP_COLUMN, left);
		fputs(text_wrap(text, HELP_COLUMN + 2, wrapped), stdout);
	}
}

/* Prints an error of the command line. Always false. */
__attribute__((format(printf, 2, 3))) static bool fail(int *code, const char *text, ...)
{
	va_list args;

	fputs("tokend: ", stderr);
	va_start(args, text);
	vfprintf(stderr, text, args);
	va_end(args);
	fputs("; see `tokend --help`\n", stderr);
	*code = USAGE;
	return false;
}

static bool take_number(int option, uint64_t *number, int *code)
{
	const struct option_row *o = &option_table[option];

	if (wire_digits(optarg, number) && *number >= o->least && *number <= o->most)
		return true;
	return fail(code, "--%s: '%s' is not an integer from %" PRIu64 " to %" PRIu64, o->name,
		optarg, o->least, o->most);
}

static bool take(struct options *options, int option, int *code)
{
	uint64_t number = 0;

	switch (option) {
	case CONFIG:
		options->config = optarg;
		return true;
	case SOCKET:
		options->socket = optarg;
		return true;
	case LINGER:
		options->linger_s = take_number(LINGER, &number, code) ? (unsigned)number : 0;
		return options->linger_s > 0;
	case PRIVATE:
		options->private_lock = take_number(PRIVATE, &number, code) ? (int)number : -1;
		return options->private_lock >= 0;
	case CHECK:
		options->check = true;
		return true;
	case VERSION:
		puts("tokend " TOKEND_VERSION);
		break;
	case HELP:
		print_help();
		break;
	}
	*code = 0;
	return false;
}

bool options_parse(struct options *options, int argc, char **argv, int *code)
{
	struct option names[OPTIONS + 1] = {0};
	int found;

	*options = (struct options){.private_lock = -1};
	for (int i = 0; i < OPTIONS; i++)
		names[i] = (struct option){option_table[i].name,
			option_table[i].value ? required_argument : no_argument, NULL, i + 1};
	opterr = 0;
	while ((found = getopt_long(argc, argv, ":c:h", names, NULL)) != -1) {
		if (found == ':')
			return fail(code, "%s needs a value", argv[optind - 1]);
		if (found == '?' && optopt >= 1 && optopt <= OPTIONS)
			return fail(code, "--%s takes no value", option_table[optopt - 1].name);
		if (found == '?')
			return fail(code, "unknown option %s", argv[optind - 1]);
		if (!take(options, found == 'c' ? CONFIG : found == 'h' ? HELP : found - 1, code))
			return false;
	}
	if (optind < argc && strcmp(argv[optind], "init") == 0)
		return fail(code, PHRASE_INIT);
	if (optind < argc)
		return fail(code, "unexpected argument '%s'", argv[optind]);
	if (!options->config)
		return fail(code, "needs -c FILE");
	if (options->private_lock >= 0 && !options->socket)
		return fail(code, "--private needs --socket");
	if (options->private_lock >= 0 && options->check)
		return fail(code, "--private and --check exclude each other");
	return true;
}
