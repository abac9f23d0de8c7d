/* The command line: parsed by the tables of options, which also make synopses and help. */
#include "client/ctl/common/ctl.h"
#include "proto/phrases.h"
#include "proto/text.h"
#include "proto/wire.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name of a command after "tokctl": " plan"; of tokctl itself it is "". */
#define SPACED(name) *(name) ? " " : "", name

int ctl_usage(const struct ctl_command *command, const char *text, ...)
{
	char what[LIMIT_TEXT_BYTES];
	va_list args;

	va_start(args, text);
	vsnprintf(what, sizeof(what), text, args);
	va_end(args);
	fprintf(stderr, "tokctl%s%s: %s; see `tokctl help%s%s`\n", SPACED(command->name),
		fault_line(what), SPACED(command->name));
	return CTL_USAGE;
}

/* "mix" of "cursor mix". */
static const char *last_word(const struct ctl_command *command)
{
	const char *last = strrchr(command->name, ' ');

	return last ? last + 1 : command->name;
}

const struct ctl_value *ctl_value(const struct ctl_arguments *a, const char *option)
{
	unsigned i = 0;

	while (i < a->command->count && strcmp(a->command->options[i].name, option) != 0)
		i++;
	assert(i < a->command->count);
	return &a->value[i];
}

uint64_t ctl_number(const struct ctl_arguments *a, const char *option, uint64_t otherwise)
{
	const struct ctl_value *value = ctl_value(a, option);

	return value->has ? value->number : otherwise;
}

/* ---- values ---- */

/* A finite decimal number ≥ 0. */
static bool parse_decimal(const char *text, double *value)
{
	char *end;

	if (strspn(text, "0123456789.eE+-") != strlen(text)) /* no hex, no names, no blanks */
		return false;
	*value = strtod(text, &end);
	return end != text && *end == 0 && isfinite(*value) && *value >= 0;
}

int ctl_weights(const struct ctl_arguments *a, int first, double weight[LIMIT_DATASETS])
{
	if (a->arguments - first > LIMIT_DATASETS)
		return ctl_usage(a->command, "more than %d datasets", LIMIT_DATASETS);
	for (int i = first; i < a->arguments; i++) {
		char *equals = strrchr(a->argument[i], '=');

		if (!equals || !parse_decimal(equals + 1, &weight[i - first]))
			return ctl_usage(a->command,
				"'%s': must be DATASET=WEIGHT; the weight must be " PHRASE_WEIGHT,
				a->argument[i]);
		*equals = 0;
		if (!wire_label_ok(a->argument[i]))
			return ctl_usage(a->command, "'%s': must be " PHRASE_LABEL, a->argument[i]);
	}
	return CTL_OK;
}

/* Sets *@number to the number of the word in @words, which are separated by '|'. */
static bool find_word(const char *words, const char *text, uint64_t *number)
{
	size_t n = strlen(text);

	for (*number = 0;; (*number)++) {
		size_t length = strcspn(words, "|");

		if (length == n && strncmp(words, text, n) == 0)
			return true;
		if (!words[length])
			return false;
		words += length + 1;
	}
}

/* Converts @text as the option's kind says. CTL_OK, or CTL_USAGE after a message. */
static int convert(const struct ctl_command *c, const struct ctl_option *o, const char *text,
	struct ctl_value *value)
{
	char most[24] = "2^64 - 1";

	if (o->most < UINT64_MAX)
		snprintf(most, sizeof(most), "%" PRIu64, o->most);
	if (o->kind == CTL_NUMBER && !(wire_digits(text, &value->number) &&
					     value->number >= o->least && value->number <= o->most))
		return ctl_usage(c, "--%s: '%s' " PHRASE_NOT_INTEGER " from %" PRIu64 " to %s",
			o->name, text, o->least, most);
	if (o->kind == CTL_CHOICE && !find_word(o->value, text, &value->number))
		return ctl_usage(c, "--%s: '%s' is not one of %s", o->name, text, o->value);
	if (o->kind == CTL_DECIMAL &&
		!(parse_decimal(text, &value->decimal) && value->decimal >= o->low &&
			value->decimal <= o->high))
		return ctl_usage(c, "--%s: '%s' is not a number from %g to %g", o->name, text,
			o->low, o->high);
	value->has = true;
	return CTL_OK;
}

static int take(struct ctl_arguments *a, unsigned i, const char *text)
{
	const struct ctl_option *o = &a->command->options[i];
	struct ctl_value *value = &a->value[i];

	if (o->kind == CTL_LIST)
		a->list[a->listed++] = text;
	else if (o->kind != CTL_FLAG && value->text)
		return ctl_usage(a->command, "--%s " PHRASE_TWICE, o->name);
	value->text = text ? text : o->optional ? o->preset : "";
	return convert(a->command, o, value->text, value);
}

/* ---- the command line ---- */

/* The number of the option that @word is: "--NAME", "--NAME=VALUE", "-L" or "-LVALUE"; sets
 * *@value, to NULL if it has none. @c's number of options: it is none of them. */
static unsigned find_option(const struct ctl_command *c, char *word, char **value)
{
	bool letter = word[0] == '-' && word[1] != '-';
	size_t n = letter ? 1 : strcspn(word + 2, "=");

	*value = letter ? (word[2] ? word + 2 : NULL) : word[2 + n] ? word + 2 + n + 1 : NULL;
	for (unsigned i = 0; i < c->count; i++) {
		const char *name = c->options[i].name;

		if (letter ? word[1] && word[1] == c->options[i].letter
			   : strlen(name) == n && strncmp(name, word + 2, n) == 0)
			return i;
	}
	return c->count;
}

static int refuse_option(const struct ctl_command *c, const char *word)
{
	const char *names[CTL_OPTIONS + 1] = {"help"}, *near;
	char typed[64];
	size_t n = 1;

	for (unsigned i = 0; i < c->count; i++)
		names[n++] = c->options[i].name;
	if (word[1] != '-')
		return ctl_usage(c, "unknown option %s", word);
	snprintf(typed, sizeof(typed), "%.*s", (int)strcspn(word + 2, "="), word + 2);
	near = nearest(typed, names, n);
	return ctl_usage(c,
		near ? "unknown option --%s (did you mean --%s?)" : "unknown option --%s", typed,
		near);
}

static bool is_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Moves the arguments to the front of @argv. CTL_OK also if --help was found, which sets *@help. */
static int parse(struct ctl_arguments *a, int argc, char **argv, bool *help)
{
	const struct ctl_command *c = a->command;
	bool options = true;
	int status = CTL_OK;

	a->argument = argv;
	for (int i = 1; i < argc && status == CTL_OK; i++) {
		char *word = argv[i], *value;

		if (!options || word[0] != '-' || !word[1]) {
			a->argument[a->arguments++] = word;
			continue;
		}
		if (strcmp(word, "--") == 0) {
			options = false;
			continue;
		}
		*help = is_help(word);
		if (*help)
			return CTL_OK;
		unsigned o = find_option(c, word, &value);

		if (o == c->count)
			return refuse_option(c, word);
		if (c->options[o].kind == CTL_FLAG && value)
			return ctl_usage(c, "--%s takes no value", c->options[o].name);
		if (c->options[o].kind != CTL_FLAG && !c->options[o].optional && !value &&
			!(value = argv[++i]))
			return ctl_usage(c, "%s needs a value", word);
		status = take(a, o, value);
	}
	return status;
}

/* The config that is used if none is named; NULL: there is none. */
static const char *find_config(void)
{
	const char *named = getenv("TOKEND_CONFIG");

	if (named && *named)
		return named;
	if (access("tokend.yaml", F_OK) == 0)
		return "tokend.yaml";
	return access("/etc/tokend/tokend.yaml", F_OK) == 0 ? "/etc/tokend/tokend.yaml" : NULL;
}

/* How many arguments the command's synopsis asks for. */
static void count_arguments(const struct ctl_command *c, int *least, int *most)
{
	const char *word = c->arguments ? c->arguments : "";

	*least = *most = 0;
	for (size_t n; (n = strcspn(word, " ")) > 0; word += n, word += *word == ' ') {
		*least += *word != '[';
		if (*most < INT_MAX)
			*most = memmem(word, n, "...", 3) ? INT_MAX : *most + 1;
	}
}

/* Fills in presets, and checks that required options and arguments were given. */
static int check(struct ctl_arguments *a)
{
	const struct ctl_command *c = a->command;
	int least, most;

	for (unsigned i = 0; i < c->count; i++) {
		const struct ctl_option *o = &c->options[i];

		if (a->value[i].text)
			continue;
		if (o->preset && convert(c, o, o->preset, &a->value[i]) != CTL_OK)
			return CTL_USAGE;
		if (o->config && !(a->value[i].text = find_config()))
			return ctl_usage(c,
				"needs -c FILE: $TOKEND_CONFIG is not set, and there is neither "
				"tokend.yaml nor /etc/tokend/tokend.yaml");
		if (o->required)
			return ctl_usage(c, "needs --%s %s", o->name, o->value);
	}
	count_arguments(c, &least, &most);
	if (a->arguments < least)
		return ctl_usage(c, "needs %s", c->arguments);
	while (a->listed > 0 && a->arguments > most) /* "--cursor *.cursor" gives several */
		a->list[a->listed++] = a->argument[--a->arguments];
	if (a->arguments > most)
		return ctl_usage(c, "unexpected argument '%s'", a->argument[most]);
	return CTL_OK;
}

static int run_subcommand(const struct ctl_command *c, int argc, char **argv)
{
	const char *known[CTL_COMMANDS], *near;
	size_t n = 0;

	for (const struct ctl_command *sub; (sub = c->subcommands[n]); n++) {
		assert(n < CTL_COMMANDS);
		known[n] = last_word(sub);
		if (strcmp(known[n], argv[1]) == 0)
			return ctl_run(sub, argc - 1, argv + 1);
	}
	if (argv[1][0] == '-')
		return ctl_usage(c, "unknown option %s before the command", argv[1]);
	if (!c->name[0] && strcmp(argv[1], "init") == 0)
		return ctl_usage(c, PHRASE_INIT);
	near = nearest(argv[1], known, n);
	return ctl_usage(c,
		near ? "unknown command '%s' (did you mean %s?)" : "unknown command '%s'", argv[1],
		near);
}

int ctl_run(const struct ctl_command *command, int argc, char **argv)
{
	struct ctl_arguments a = {.command = command};
	bool help = false;
	int status;

	if (command->subcommands && argc < 2)
		return ctl_usage(command, "needs a subcommand");
	if (command->subcommands && !is_help(argv[1]))
		return run_subcommand(command, argc, argv);
	assert(command->count <= CTL_OPTIONS);
	a.list = calloc((size_t)argc + 1, sizeof(*a.list));
	status = a.list ? parse(&a, argc, argv, &help) : ctl_fail(PHRASE_MEMORY);
	if (help)
		ctl_help(stdout, command);
	else if (status == CTL_OK && (status = check(&a)) == CTL_OK)
		status = command->run(&a);
	free(a.list);
	return status;
}

/* ---- synopses and help ---- */

enum { HELP_COLUMN = 24 }; /* of what an option does */

/* " FILE", "[=SECONDS]" or "". */
static const char *value_of(const struct ctl_option *o, char text[64])
{
	text[0] = 0;
	if (o->kind != CTL_FLAG)
		snprintf(text, 64, o->optional ? "[=%s]" : " %s", o->value);
	return text;
}

/* Writes "tokctl plan STREAM -c FILE [--json]". */
static void put_synopsis(const struct ctl_command *command, FILE *to)
{
	fprintf(to, "tokctl%s%s", SPACED(command->name));
	if (command->arguments)
		fprintf(to, " %s", command->arguments);
	for (int required = 1; required >= 0; required--)
		for (unsigned i = 0; i < command->count; i++) {
			const struct ctl_option *o = &command->options[i];
			char value[64];

			if (o->required != required)
				continue;
			fprintf(to, required ? " -" : " [-");
			o->letter ? fprintf(to, "%c", o->letter) : fprintf(to, "-%s", o->name);
			fprintf(to, "%s%s%s", value_of(o, value), o->kind == CTL_LIST ? "..." : "",
				required ? "" : "]");
		}
	for (unsigned i = 0; command->subcommands && !command->arguments && command->subcommands[i];
		i++)
		fprintf(to, "%s%s", i ? "|" : " ", last_word(command->subcommands[i]));
}

/* Writes the range and the preset of an option, "1 to 3600; default: 60", or "". */
static void write_range(const struct ctl_option *o, char *text, size_t bytes)
{
	int n = 0;

	text[0] = 0;
	if (o->kind == CTL_NUMBER && o->most < UINT64_MAX - 1)
		n = snprintf(text, bytes, "%" PRIu64 " to %" PRIu64, o->least, o->most);
	else if (o->kind == CTL_NUMBER && o->least > 0)
		n = snprintf(text, bytes, "%" PRIu64 " or more", o->least);
	else if (o->kind == CTL_DECIMAL)
		n = snprintf(text, bytes, "%g to %g", o->low, o->high);
	else if (o->kind == CTL_LIST)
		n = snprintf(text, bytes, "may be repeated");
	if (o->preset)
		snprintf(text + n, bytes - (size_t)n, "%sdefault: %s", n ? "; " : "", o->preset);
}

void ctl_help(FILE *to, const struct ctl_command *command)
{
	char range[128], text[512], value[64], synopsis[WRAPPED_BYTES] = "", wrapped[WRAPPED_BYTES];
	FILE *line = fmemopen(synopsis, sizeof(synopsis), "w");

	if (line) {
		put_synopsis(command, line);
		fclose(line);
	}
	fprintf(to, "usage: %s", text_wrap(synopsis, strlen("usage: "), wrapped));
	fprintf(to, "%s\n\n", command->help);
	for (unsigned i = 0; command->subcommands && command->subcommands[i]; i++) {
		const struct ctl_command *sub = command->subcommands[i];

		if (sub->head)
			fprintf(to, "%s%s\n", i ? "\n" : "", sub->head);
		fprintf(to, "  %-10s  %s\n", last_word(sub), sub->help);
	}
	if (command->subcommands) {
		fprintf(to,
			"\n`tokctl help%s%s COMMAND` lists its options; tokctl(1) explains what "
			"it prints.\n"
			"Exit status: 0 success, 1 failure or a negative answer, 2 usage error.\n",
			SPACED(command->name));
		return;
	}
	for (unsigned i = 0; i < command->count; i++) {
		const struct ctl_option *o = &command->options[i];
		const char letter[] = {'-', o->letter, ',', 0};

		write_range(o, range, sizeof(range));
		snprintf(text, sizeof(text), range[0] ? "%s (%s)" : "%s", o->help, range);
		int n = fprintf(
			to, "  %3s --%s%s", o->letter ? letter : "", o->name, value_of(o, value));

		if (n > HELP_COLUMN - 2) {
			fputc('\n', to);
			n = 0;
		}
		fprintf(to, "%*s", HELP_COLUMN - n, "");
		fputs(text_wrap(text, HELP_COLUMN, wrapped), to);
	}
	fprintf(to, "%-*sprint this text\n", HELP_COLUMN, "  -h, --help");
}
