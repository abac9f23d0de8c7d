/*
 * Subcommands as data. One table of options per command parses the arguments and makes the usage
 * line and `--help`. The man page has them too, between its own texts (man/tokctl.1.txt).
 */
#ifndef TOKEND_CTL_ARGUMENTS_H
#define TOKEND_CTL_ARGUMENTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CTL_OPTIONS = 24 };  /* most options of a command */
enum { CTL_COMMANDS = 32 }; /* most commands, and most subcommands of one */
enum { CTL_ANY = INT_MAX }; /* any number of arguments */

enum ctl_kind {
	CTL_TEXT,
	CTL_FLAG,
	CTL_NUMBER,  /* decimal digits, `least` to `most` */
	CTL_DECIMAL, /* a decimal number, `low` to `high` */
	CTL_CHOICE,  /* one of the words in `value`, separated by '|' */
	CTL_LIST,    /* a text; may be repeated, and gets arguments that are too many */
};

/*
 * Ranges and presets are not part of the phrase: `--help` and the man page add them from here, as
 * "(1 to 3600; default: 60)".
 */
struct ctl_option {
	const char *name; /* without "--"; NULL: the command does not have this option */
	char letter;	  /* or 0 */
	enum ctl_kind kind;
	bool required;
	bool optional; /* --name alone is its preset; a value follows as --name=VALUE */
	bool config; /* if it is not given, the config is looked for at the places in its phrase */
	const char *value; /* the name of its value in a synopsis, with its unit: "SECONDS" */
	uint64_t least, most;
	double low, high;
	/* Default of a CTL_NUMBER, CTL_DECIMAL or CTL_CHOICE, parsed as if it had been typed. Other
	 * defaults are words at the end of the phrase: "…; default: all". */
	const char *preset;
	const char *help; /* a phrase, in lower case and without a full stop */
};

/*
 * An option in one line: {OPTION_NUMBER("to", "POSITION", 0, UINT64_MAX, "end of the range")}.
 * Further members may follow: {OPTION_TEXT(…), .preset = "window"}.
 */
#define OPTION_TEXT(n, unit, phrase) .name = n, .value = unit, .help = phrase
#define OPTION_LIST(n, unit, phrase) .kind = CTL_LIST, OPTION_TEXT(n, unit, phrase)
#define OPTION_FLAG(n, phrase)	     .kind = CTL_FLAG, .name = n, .help = phrase
#define OPTION_NUMBER(n, unit, lowest, highest, phrase)                                            \
	.kind = CTL_NUMBER, .least = lowest, .most = highest, OPTION_TEXT(n, unit, phrase)
#define OPTION_DECIMAL(n, unit, lowest, highest, phrase)                                           \
	.kind = CTL_DECIMAL, .low = lowest, .high = highest, OPTION_TEXT(n, unit, phrase)
#define OPTION_CHOICE(n, words, phrase) .kind = CTL_CHOICE, OPTION_TEXT(n, words, phrase)
/* The member of a command: .run = plan, OPTIONS_ARE(options) */
#define OPTIONS_ARE(table) .options = table, .count = sizeof(table) / sizeof((table)[0])

#define CTL_CONFIG_OPTION                                                                          \
	{                                                                                          \
		.name = "config", .letter = 'c', .value = "FILE", .help = "the config file"        \
	}
/* Of commands that need a config. */
#define CTL_CONFIG_NEEDED                                                                          \
	{                                                                                          \
		.name = "config", .letter = 'c', .config = true, .value = "FILE",                  \
		.help = "the config file; default: $TOKEND_CONFIG, otherwise the first of "        \
			"tokend.yaml and /etc/tokend/tokend.yaml"                                  \
	}
#define CTL_JSON_OPTION                                                                            \
	{                                                                                          \
		.name = "json", .kind = CTL_FLAG, .help = "print one JSON object per line"         \
	}
#define CTL_SOCKET_OPTION                                                                          \
	{                                                                                          \
		.name = "socket", .value = "PATH",                                                 \
		.help = "the daemon's socket; default: the first daemon found at the places in "   \
			"tokctl(1)"                                                                \
	}

struct ctl_arguments;

struct ctl_command {
	const char *name; /* as typed after "tokctl": "plan", "cursor mix" */
	/* The other arguments in a synopsis, "STREAM", or NULL. So many are needed and allowed, in
	 * brackets none, with "..." any; @most changes that. */
	const char *arguments;
	int most;
	const char *help;		  /* one line */
	const struct ctl_option *options; /* [count]; numbered by the command's own enum */
	unsigned count;
	int (*run)(const struct ctl_arguments *a); /* returns an exit status */
	const struct ctl_command *const
		*subcommands; /* ends with NULL; then no options and no run */
};

struct ctl_value {
	const char *text; /* as given; NULL: not given */
	uint64_t number;  /* CTL_NUMBER; CTL_CHOICE: the number of the word, from 0 */
	double decimal;	  /* CTL_DECIMAL */
	const char **list;
	unsigned count; /* of the list */
};

/* The parsed command line; valid until run() returns. */
struct ctl_arguments {
	const struct ctl_command *command;
	struct ctl_value value[CTL_OPTIONS];
	char **argument; /* [arguments] */
	int arguments;
};

/* Parses argv[1] …, with options anywhere, and runs the command. With --help, prints its help
 * instead. Returns an exit status. */
int ctl_run(const struct ctl_command *command, int argc, char **argv);
/* Prints an error of the command line, and where the help of @command is. Always CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(
	const struct ctl_command *command, const char *text, ...);
/* The option that @word is: "--NAME", "--NAME=VALUE", "-L" or "-LVALUE"; sets *@value, to NULL if
 * it has none. Returns its number, or @c's number of options: it is none of them. */
unsigned ctl_option(const struct ctl_command *c, char *word, char **value);
/* "mix" of "cursor mix". */
const char *ctl_last_word(const struct ctl_command *command);
/* The command of that name, or NULL. @commands ends with NULL. */
const struct ctl_command *ctl_find(const struct ctl_command *const *commands, const char *name);
/* The command most similar to the mistyped @name, or NULL. */
const char *ctl_nearest(const struct ctl_command *const *commands, const char *name);

static inline bool ctl_given(const struct ctl_arguments *a, unsigned option)
{
	return a->value[option].text;
}

static inline const char *ctl_text(const struct ctl_arguments *a, unsigned option)
{
	return a->value[option].text;
}

/* The value of the option called @name; NULL: it was not given, or the command has none. */
const char *ctl_named(const struct ctl_arguments *a, const char *name);

/* The number that was given, otherwise the option's preset, otherwise @otherwise. */
static inline uint64_t ctl_number(
	const struct ctl_arguments *a, unsigned option, uint64_t otherwise)
{
	return a->value[option].text || a->command->options[option].preset ? a->value[option].number
									   : otherwise;
}

/* ---- help, made from the tables ---- */

/* "tokctl plan STREAM -c FILE [--json]". Free it. NULL: out of memory. */
char *ctl_synopsis(const struct ctl_command *command);
/* The range and the preset of an option, "1 to 3600; default: 60", or "". */
void ctl_range(const struct ctl_option *o, char *text, size_t bytes);
/* The text of `--help`. */
void ctl_help(FILE *to, const struct ctl_command *command);
/* The line of a command in a list of them. */
void ctl_help_line(FILE *to, const struct ctl_command *command);

/* ---- values ---- */

/* Splits the arguments from @first on, DATASET=WEIGHT, into names and weights. A name may contain
 * '='. Returns an exit status. */
int ctl_weights(const struct ctl_arguments *a, int first, double *weight);

#endif
