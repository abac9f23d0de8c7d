/*
 * Arguments. getopt_long() finds the options; a table says where they go.
 */
#include "client/ctl/common/arguments.h"

#include "proto/wire.h"

#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool take(const struct ctl_option *option, const char *command, const char *value)
{
	if (option->list) {
		option->list[(*option->count)++] = value;
		return true;
	}
	if (option->flag) {
		*option->flag = true;
		return true;
	}
	if (*option->value) {
		ctl_usage(command, "--%s is given twice", option->name);
		return false;
	}
	*option->value = value;
	return true;
}

int ctl_options(int argc, char **argv, const struct ctl_option *options, unsigned n)
{
	struct option names[CTL_OPTIONS + 1] = {0};
	char letters[2 * CTL_OPTIONS + 2] = ":";
	size_t length = 1;

	for (unsigned i = 0; i < n && i < CTL_OPTIONS; i++) {
		names[i] = (struct option){options[i].name,
			options[i].flag ? no_argument : required_argument, NULL, 256 + (int)i};
		if (options[i].letter) {
			letters[length++] = options[i].letter;
			if (!options[i].flag)
				letters[length++] = ':';
		}
	}
	optind = 0; /* a fresh start for glibc, whatever was parsed before */
	opterr = 0;
	for (int c; (c = getopt_long(argc, argv, letters, names, NULL)) != -1;) {
		unsigned i = 0;

		if (c == '?' || c == ':') {
			ctl_usage(argv[0], c == '?' ? "unknown option %s" : "%s needs a value",
				argv[optind - 1]);
			return -1;
		}
		while (i < n && c != 256 + (int)i && c != options[i].letter)
			i++;
		if (!take(&options[i], argv[0], optarg))
			return -1;
	}
	/* getopt_long() has moved the other arguments behind the options. */
	for (int i = optind; i < argc; i++)
		argv[1 + i - optind] = argv[i];
	return argc - optind;
}

bool ctl_number(const char *text, uint64_t *value)
{
	return wire_digits(text, value);
}

bool ctl_weight(const char *text, double *value)
{
	char *end;

	if (strspn(text, "0123456789.eE+-") != strlen(text)) /* no hex, no names, no blanks */
		return false;
	*value = strtod(text, &end);
	return end != text && *end == 0 && isfinite(*value) && *value >= 0;
}
