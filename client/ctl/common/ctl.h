/*
 * What the subcommands of tokctl share. Facts go to stdout, one a line, aligned for people or
 * (--json) as one object a line; errors go to stderr, one line each.
 */
#ifndef TOKEND_CTL_H
#define TOKEND_CTL_H

#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"
#include "proto/cursor.h"

enum { CTL_OK, CTL_FAILED, CTL_USAGE }; /* exit statuses */

/* ---- subcommands: argv[0] is the subcommand's name ---- */

int ctl_plan(int argc, char **argv);
int ctl_when(int argc, char **argv);
int ctl_inspect(int argc, char **argv);
int ctl_pack(int argc, char **argv);
int ctl_cat(int argc, char **argv);
int ctl_cursor(int argc, char **argv);
int ctl_status(int argc, char **argv);
int ctl_verify(int argc, char **argv);
int ctl_top(int argc, char **argv);
int ctl_request(int argc, char **argv); /* mix, skip, checkpoint, drain, rescale */

/* ---- errors ---- */

/* "tokctl: …" on stderr, of what is no failure. */
__attribute__((format(printf, 1, 2))) void ctl_note(const char *text, ...);
/* The same of one; always CTL_FAILED. */
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
 * Options may stand anywhere. Returns how many other arguments there are, moved to argv[1] …, or -1
 * after a usage error; then the caller returns CTL_USAGE.
 */
int ctl_options(int argc, char **argv, const struct ctl_option *options, unsigned n);
/* Plain decimal digits up to 2^64 - 1. */
bool ctl_number(const char *text, uint64_t *value);
/* A finite decimal number ≥ 0. */
bool ctl_weight(const char *text, double *value);
/* Where the daemon listens: @option, else $TOKEND_SOCKET, else the socket of the config @config,
 * else the usual place. Owned by the caller; NULL after an error was printed. @option and @config
 * may be NULL. */
char *ctl_socket(const char *option, const char *config);

/* ---- output ---- */

struct ctl_out {
	size_t n;
	bool failed;
	char buffer[1 << 16];
};

void ctl_put(struct ctl_out *out, const char *text);
void ctl_put_number(struct ctl_out *out, uint64_t value);
void ctl_put_string(struct ctl_out *out,
	const char *text); /* JSON, with its quotes; bytes that are no UTF-8 as \udcXX */
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

/* ---- talk.c: to a daemon; errors are printed ---- */

struct packet;
struct wire;

enum ctl_heard {
	CTL_MESSAGE,
	CTL_TIMEOUT,
	CTL_OTHER, /* @other became readable */
	CTL_LOST,  /* the daemon is gone; the only one that is not printed */
	CTL_BAD,
};

/* Connects and says hello. -1 after an error. @given and @config are ctl_socket()'s; *@socket, what
 * that gave, is the caller's. */
int ctl_connect(const char *given, const char *config, char **socket, struct packet *packet);
/* The next message within @ms. @other: a descriptor to watch too, or -1. */
enum ctl_heard ctl_hear(int fd, struct packet *packet, int ms, int other);
/* The next message; false after an error. */
bool ctl_receive(int fd, struct packet *packet);
/* The same, in answer to a question; one that says why not is an error. */
bool ctl_ask(int fd, const struct wire *question, struct packet *packet);
/* Asks for all sessions, and gives @each what comes until the totals, which are then in @packet. */
bool ctl_status_list(int fd, struct packet *packet,
	void (*each)(void *context, const struct wire *w), void *context);

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

/* ---- history.c: the mixes of a run, as far as they are known ---- */

/* Several cursors of one run, joined: one order over all their segments. */
struct ctl_history {
	const struct cursor *widest; /* the cursor with the longest list of datasets; owned */
	struct order order;	     /* of all segments; borrows from the history */
	struct ctl_history_parts *parts;
};

/*
 * Of the cursors in files @paths, or of the log that tokend keeps of run @run
 * (STATE_DIR/STREAM/RUN/mixes), or, with neither, of the config. @n paths and @run exclude each
 * other. The files, in any order, are refused if they do not join. A log goes back as far as it
 * joins and can be read; where that is not the run's beginning because of a file, stderr says
 * which.
 */
bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run);
void ctl_history_close(struct ctl_history *h);

/* ---- reader.c: the tokens of windows, from the shards ---- */

struct ctl_reader;

/* Borrows both until closed. NULL: out of memory. */
struct ctl_reader *ctl_reader_open(const struct ctl_stream *s, const struct ctl_history *h);
/* The window at @place into @tokens: seq_len + extra tokens in the stream's width. */
bool ctl_reader_read(struct ctl_reader *reader, const struct order_place *place, void *tokens);
void ctl_reader_close(struct ctl_reader *reader);

#endif
