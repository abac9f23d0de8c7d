/*
 * What all commands use: the command line, output, messages, files and progress.
 */
#ifndef TOKEND_CTL_H
#define TOKEND_CTL_H

#include "proto/cursor.h"
#include "proto/order.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- messages on stderr, one line each; time and memory ---- */

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* Prints "tokctl: …" to stderr. Always CTL_FAILED. */
__attribute__((format(printf, 1, 2))) int ctl_fail(const char *text, ...);
/* The same for a remark that is not a failure. */
#define ctl_note(...) ((void)ctl_fail(__VA_ARGS__))
/* The same for functions that return a bool: false. */
#define ctl_error(...) (ctl_fail(__VA_ARGS__), false)

/* CLOCK_MONOTONIC in ms. */
uint64_t ctl_clock_ms(void);

/* Makes room for one more item of @bytes in *@array, which has @n items and grows by doubling. On
 * failure prints a message and returns false. */
bool ctl_grow(void **array, size_t n, size_t bytes);

/* ---- the command line ---- */

/*
 * Subcommands as data. One table of options per command parses the arguments and makes the usage
 * line and `--help`, which the man page has between its own texts (man/tokctl.1.txt).
 */
enum {
	CTL_OPTIONS = 24,  /* most options of a command */
	CTL_COMMANDS = 32, /* most commands, and most subcommands of one */
};

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
	const char *name; /* without "--" */
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

/* Options of several commands: {CTL_JSON_OPTION}. */
#define CTL_CONFIG_OPTION                                                                          \
	OPTION_TEXT("config", "FILE", "the config file; the daemon is the one that serves it"),    \
		.letter = 'c'
/* Of commands that need a config. */
#define CTL_CONFIG_NEEDED                                                                          \
	OPTION_TEXT("config", "FILE",                                                              \
		"the config file; default: $TOKEND_CONFIG, otherwise the first of tokend.yaml "    \
		"and /etc/tokend/tokend.yaml"),                                                    \
		.letter = 'c', .config = true
#define CTL_JSON_OPTION OPTION_FLAG("json", "print one JSON object per line")
#define CTL_SOCKET_OPTION                                                                          \
	OPTION_TEXT("socket", "PATH",                                                              \
		"the daemon's socket; default: that of -c, otherwise the first at which one "      \
		"listens: see tokctl(1)")

struct ctl_arguments;

struct ctl_command {
	const char *name; /* as typed after "tokctl": "plan", "cursor mix" */
	const char *head; /* above it in a list of commands; or NULL */
	/* The other arguments in a synopsis, "STREAM", or NULL. So many are needed and allowed, in
	 * brackets none, with "..." any. */
	const char *arguments;
	const char *help;		  /* one line */
	const struct ctl_option *options; /* [count] */
	unsigned count;
	int (*run)(const struct ctl_arguments *a); /* returns an exit status */
	const struct ctl_command *const
		*subcommands; /* ends with NULL; then no options and no run */
};

struct ctl_value {
	const char *text; /* as given; NULL: not given */
	bool has;	  /* the next two: by what was given, otherwise by the preset */
	uint64_t number;  /* CTL_NUMBER; CTL_CHOICE: the number of the word, from 0 */
	double decimal;	  /* CTL_DECIMAL */
};

/* The parsed command line; valid until run() returns. */
struct ctl_arguments {
	const struct ctl_command *command;
	struct ctl_value value[CTL_OPTIONS];
	char **argument; /* [arguments] */
	int arguments;
	const char **list; /* [listed] of the option of kind CTL_LIST; a command has one at most */
	unsigned listed;   /* room: for all arguments, too */
};

/* Parses argv[1] …, with options anywhere, and runs the command. With --help, prints its help
 * instead. Returns an exit status. */
int ctl_run(const struct ctl_command *command, int argc, char **argv);
/* Prints an error of the command line, and where the help of @command is. Always CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(
	const struct ctl_command *command, const char *text, ...);

/* The value of an option, by its name; the command must have it. */
const struct ctl_value *ctl_value(const struct ctl_arguments *a, const char *option);
/* Its text; NULL: it was not given. */
#define ctl_text(a, option)  (ctl_value(a, option)->text)
#define ctl_given(a, option) (ctl_text(a, option) != NULL)
/* The number that was given, otherwise the option's preset, otherwise @otherwise. */
uint64_t ctl_number(const struct ctl_arguments *a, const char *option, uint64_t otherwise);

/* The text of `--help`; the man page and completions are made from it. */
void ctl_help(FILE *to, const struct ctl_command *command);
/* `tokctl help --keys`: the config's keys, for man/pages.py. Always CTL_OK. */
int ctl_keys(void);
extern const struct ctl_command ctl_completion;

/* Splits the arguments from @first on, DATASET=WEIGHT, into names and weights. A name may contain
 * '='. Returns an exit status. */
int ctl_weights(const struct ctl_arguments *a, int first, double weight[LIMIT_DATASETS]);

/* ---- output ---- */

/*
 * What a command prints, said once: with --json an object per line, otherwise a table, or lines.
 *
 *	struct emit e = {.json = ctl_given(a, "json")};
 *
 *	for (size_t i = 0; i < n && !e.error; i++) {
 *		emit_text(&e, "dataset", "DATASET", name[i]);
 *		emit_number(&e, "objects", "OBJECTS", objects[i]);
 *		emit_row(&e);
 *	}
 *	return emit_end(&e, CTL_OK);
 *
 * prints {"dataset":"web","objects":7}, or below a line of heads
 *
 *	web            7
 *
 * @key names the member of the object; NULL: it is only in the text; "": it is an item of an array.
 * @head is the column's head; NULL: it is only in the JSON; "": the column has none. Heads are
 * borrowed until the table ends. Each row of a table has the same columns, at most EMIT_COLUMNS;
 * its members may differ.
 *
 * Rows are printed when `held` is full. Columns are as wide as in all rows until then, so the last
 * ones of a long table may be wider. A table of any length takes no memory, and nothing here fails
 * but writing.
 *
 * Text is cleaned: control characters, also U+0080 to U+009F, and bytes that are not UTF-8 become
 * '?'. In JSON they are escaped; bytes that are not UTF-8 become \udcXX, as in Python's
 * surrogateescape.
 */
enum { EMIT_COLUMNS = 24, EMIT_HELD_BYTES = 1 << 15 };

struct emit {
	FILE *to; /* NULL: stdout */
	bool json;
	int error; /* errno of writing, which emit_end() reports; or 0 */

	/* Private. */
	bool object, comma;	  /* object: the row's is open */
	bool open;		  /* a line of text that has no end yet */
	bool headed;		  /* the heads are printed */
	unsigned column, printed; /* columns of this row: seen, printed */
	unsigned columns;
	size_t owed; /* spaces before the next cell */
	const char *head[EMIT_COLUMNS];
	bool right[EMIT_COLUMNS];
	size_t width[EMIT_COLUMNS];
	size_t n;
	char held[EMIT_HELD_BYTES]; /* cells: what they are, the text, 0 */
};

/* A text, aligned left. NULL is null in JSON and "-" in text. */
void emit_text(struct emit *e, const char *key, const char *head, const char *text);
/* Numbers, aligned right. */
void emit_number(struct emit *e, const char *key, const char *head, uint64_t value);
/* A number that may be absent: null, and "-". */
void emit_optional(struct emit *e, const char *key, const char *head, uint64_t value, bool present);
/* JSON has 9 digits, text @digits after the point. */
void emit_decimal(struct emit *e, const char *key, const char *head, double value, int digits);
/* In text with a unit of powers of 1000: "1.4 TB". */
void emit_bytes(struct emit *e, const char *key, const char *head, uint64_t value);
/* true or false; "yes" or "no". */
void emit_bool(struct emit *e, const char *key, const char *head, bool value);

/* Only in the text: a cell that is aligned right. */
__attribute__((format(printf, 3, 4))) void emit_cell(
	struct emit *e, const char *head, const char *format, ...);
/* Only in the text: more at the end of the row or line that was the last. */
__attribute__((format(printf, 2, 3))) void emit_more(struct emit *e, const char *format, ...);
/* Only in the text: a line between rows. */
#define emit_line(e, ...) (emit_end_line(e), emit_more(e, __VA_ARGS__))
void emit_end_line(struct emit *e);

/* Only in JSON: begins an object or array, '{' or '[', and ends it, '}' or ']'. */
void emit_open(struct emit *e, const char *key, char bracket);
void emit_close(struct emit *e, char bracket);
/* Only in JSON: a value that is JSON already; with "" as key also members, separated by ','. */
void emit_json(struct emit *e, const char *key, const char *json);

/* Ends the row, and its object. */
void emit_row(struct emit *e);
/* Ends the table; then there is another one, with other columns. */
void emit_table(struct emit *e);
/* Ends it all. Returns @status, or CTL_FAILED after a message if writing failed. */
int emit_end(struct emit *e, int status);

/* "1.4 TB", of any unit: "B", "tokens". */
struct si {
	char text[32];
};
struct si si(double value, const char *unit);

/* ---- files ---- */

/* A file that replaces another whole: it is under its path complete and synced, or not at all. */
struct ctl_file {
	const char *path;	  /* borrowed */
	char part[PATH_MAX + 24]; /* its name until then */
	bool unnamed;		  /* it has none */
	FILE *to;
};

/* False after an error was printed. Otherwise the caller writes to @to and ends it. */
bool ctl_file_begin(struct ctl_file *f, const char *path);
/* Puts it under its path; without @keep, or after a fault, drops it. False: it is not there, and if
 * it was to be, an error was printed. */
bool ctl_file_end(struct ctl_file *f, bool keep);
/* Replaces @path by a file of @n bytes. False after an error was printed. */
bool ctl_file_write(const char *path, const void *bytes, size_t n);
/* Makes a rename() to @path survive a power cut. False, with errno, if it may not. */
bool ctl_file_sync_parent(const char *path);

/*
 * Maps a regular file to read it, until the next call. NULL after an error was printed. If a read
 * of the mapping fails, because the file became shorter or its disk fails, the process prints that
 * and exits: no such read may be within malloc() or stdio. @path is borrowed until then.
 */
const void *ctl_map(const char *path, size_t *bytes);

/* Reads the cursor file @path to @cursor, which is zero; false after an error. @begin: the first
 * cursor of the stream that @cursor must belong to, or NULL. The caller calls cursor_free() after a
 * failure, too. */
bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct cursor *begin);

/* ---- a line of progress on stderr, if that is a terminal ---- */

/* There is one at a time. @what: "packing", and @unit: "tokens", borrowed. @total 0: not known. */
void ctl_progress_begin(const char *what, const char *unit, uint64_t total);
/* Adds finished units. Any thread may call it. */
void ctl_progress_add(uint64_t n);
/* Removes the line. */
void ctl_progress_end(void);

/* The share of the samples, from 0 to 1, that a mix takes from dataset @d; 0 if it is older. */
static inline double ctl_fraction(const struct order_segment *s, uint32_t d)
{
	return d < s->datasets ? (double)s->units[d] / (double)s->prefix[s->padded] : 0;
}

#endif
