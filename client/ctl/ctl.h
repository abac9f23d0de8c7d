/*
 * What the subcommands of tokctl share. Facts go to stdout, one a line, aligned for people or (--json) as one
 * object a line; errors go to stderr, one line each.
 */
#ifndef TOKEND_CTL_H
#define TOKEND_CTL_H

#include "../../daemon/config.h"
#include "../../daemon/dataset.h"
#include "../../proto/cursor.h"

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* ---- subcommands: argv[0] is the subcommand's name ---- */

int ctl_plan(int argc, char **argv);
int ctl_when(int argc, char **argv);
int ctl_inspect(int argc, char **argv);
int ctl_cat(int argc, char **argv);
int ctl_cursor(int argc, char **argv);
int ctl_status(int argc, char **argv);

/* ---- errors ---- */

/* "tokctl: …" on stderr; always CTL_FAILED. */
__attribute__((format(printf, 1, 2))) int ctl_fail(const char *text, ...);
/* The same and how @command is called; always CTL_USAGE. */
__attribute__((format(printf, 2, 3))) int ctl_usage(const char *command, const char *text, ...);

/* ---- arguments ---- */

/* One of value, flag and list is set. An option given twice is refused, but for lists. */
struct ctl_option {
	const char *name; /* "--name" */
	char letter;	  /* "-c", or 0 */
	const char **value;
	bool *flag;
	const char **list; /* argc entries are enough */
	unsigned *count;
};

enum { CTL_OPTIONS = 24 }; /* in one table at most */

/*
 * Options may stand anywhere. Returns how many other arguments there are, moved to argv[1] …, or -1 after a
 * usage error; then the caller returns CTL_USAGE.
 */
int ctl_options(int argc, char **argv, const struct ctl_option *options, unsigned n);
/* Plain decimal digits up to 2^64 - 1. */
bool ctl_number(const char *text, uint64_t *value);
/* A finite decimal number ≥ 0. */
bool ctl_weight(const char *text, double *value);
/* Where the daemon listens: @option, else $TOKEND_SOCKET, else the socket of the config @config, else the
 * usual place. Owned by the caller; NULL after an error was printed. @option and @config may be NULL. */
char *ctl_socket(const char *option, const char *config);

/* ---- output ---- */

struct ctl_out {
	size_t n;
	bool failed;
	char buffer[1 << 16];
};

void ctl_put(struct ctl_out *out, const char *text);
void ctl_put_number(struct ctl_out *out, uint64_t value);
void ctl_put_string(
	struct ctl_out *out, const char *text); /* JSON, with its quotes; bytes that are no UTF-8 as \udcXX */
/* "key":value with the key as it is. */
void ctl_put_pair(struct ctl_out *out, const char *key, uint64_t value);
/* For people: padded to @width, control characters replaced. */
void ctl_put_left(struct ctl_out *out, const char *text, size_t width);
void ctl_put_right(struct ctl_out *out, uint64_t value, size_t width);
/* Writes what is left. Returns @status, or CTL_FAILED if stdout took not all of it. */
int ctl_finish(struct ctl_out *out, int status);
/* Characters of a UTF-8 text, digits of a number. */
size_t ctl_width(const char *text);
size_t ctl_digits(uint64_t value);

/* ---- streams and cursors; errors are printed ---- */

struct ctl_stream {
	struct config *config;
	struct catalog *catalog;
	const struct stream *stream;
};

bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream);
void ctl_stream_close(struct ctl_stream *s);

/* @stream, if not NULL, is the one it must belong to. cursor_free() is the caller's either way. */
bool ctl_cursor_read(struct cursor *cursor, const char *path, const struct stream *stream);
/* Replaces @path at one stroke and durably. */
bool ctl_cursor_write(const struct cursor *cursor, const char *path);

#endif
