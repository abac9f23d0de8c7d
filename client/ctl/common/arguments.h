/*
 * Subcommands as data: a table of options each, from which arguments are parsed, and usage lines
 * and help are made.
 */
#ifndef TOKEND_CTL_ARGUMENTS_H
#define TOKEND_CTL_ARGUMENTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CTL_OPTIONS = 24 };  /* in one table at most */
enum { CTL_ANY = INT_MAX }; /* any number of arguments */

enum ctl_kind {
	CTL_TEXT,
	CTL_FLAG,
	CTL_NUMBER,  /* plain decimal digits, `least` to `most` */
	CTL_DECIMAL, /* a decimal number, `low` to `high` */
	CTL_CHOICE,  /* one of the words in `value`, which has '|' between them */
	CTL_LIST,    /* a text; may be given again */
};

struct ctl_option {
	const char *name; /* without "--"; NULL: the command does not have this option */
	char letter;	  /* or 0 */
	enum ctl_kind kind;
	bool required;
	const char *value; /* the name of its value in a synopsis: "FILE" */
	uint64_t least, most;
	double low, high;
	const char *help; /* a phrase */
};

#define CTL_CONFIG_OPTION                                                                          \
	{                                                                                          \
		.name = "config", .letter = 'c', .value = "FILE", .help = "the config"             \
	}
#define CTL_CONFIG_REQUIRED                                                                        \
	{                                                                                          \
		.name = "config", .letter = 'c', .required = true, .value = "FILE",                \
		.help = "the config"                                                               \
	}
#define CTL_JSON_OPTION                                                                            \
	{                                                                                          \
		.name = "json", .kind = CTL_FLAG, .help = "print one JSON object a line"           \
	}
#define CTL_SOCKET_OPTION                                                                          \
	{                                                                                          \
		.name = "socket", .value = "PATH",                                                 \
		.help = "the daemon's socket; default: $TOKEND_SOCKET, that of the config, or "    \
			"/run/tokend/tokend.sock"                                                  \
	}

struct ctl_arguments;

struct ctl_command {
	const char *name;		  /* as typed after "tokctl": "plan", "cursor mix" */
	const char *arguments;		  /* the other arguments in a synopsis: "STREAM"; or NULL */
	int least, most;		  /* how many of them */
	const char *help;		  /* one line */
	const struct ctl_option *options; /* [count]; numbered by the command's own enum */
	unsigned count;
	int (*run)(const struct ctl_arguments *a);    /* returns an exit status */
	const struct ctl_command *const *subcommands; /* instead of all but name; ends with NULL */
};

struct ctl_value {
	const char *text; /* as it was given; NULL: it was not */
	uint64_t number;  /* CTL_NUMBER; CTL_CHOICE: which word, from 0 */
	double decimal;	  /* CTL_DECIMAL */
	const char **list;
	unsigned count; /* of the list */
};

/* What was parsed; all of it lives until run() returns. */
struct ctl_arguments {
	const struct ctl_command *command;
	struct ctl_value value[CTL_OPTIONS];
	char **argument; /* [arguments] */
	int arguments;
};

/* Parses argv[1] …, for which options may stand anywhere, and runs the command; or, for --help,
 * prints its help. Returns an exit status. */
int ctl_run(const struct ctl_command *command, int argc, char **argv);
/* An error of the command line and how @command is called; always CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(
	const struct ctl_command *command, const char *text, ...);
/* The command of that name, or NULL. @commands ends with NULL. */
const struct ctl_command *ctl_find(const struct ctl_command *const *commands, const char *name);

static inline bool ctl_given(const struct ctl_arguments *a, unsigned option)
{
	return a->value[option].text;
}

static inline const char *ctl_text(const struct ctl_arguments *a, unsigned option)
{
	return a->value[option].text;
}

static inline uint64_t ctl_number(
	const struct ctl_arguments *a, unsigned option, uint64_t otherwise)
{
	return a->value[option].text ? a->value[option].number : otherwise;
}

/* The values of a list, and after it the arguments from @first on if the list was given: "--cursor
 * A B" is the shell's way of giving several. */
const char **ctl_list(const struct ctl_arguments *a, unsigned option, int first, unsigned *count);

/* Plain decimal digits up to 2^64 - 1. */
bool ctl_parse_number(const char *text, uint64_t *value);
/* A finite decimal number ≥ 0. */
bool ctl_parse_decimal(const char *text, double *value);

#endif
