/*
 * A stream of a config, opened without a daemon; the mixes of a run; and the tokens of windows,
 * read from the shards. Functions that fail print a message and return false.
 */
#ifndef TOKEND_CTL_STREAM_H
#define TOKEND_CTL_STREAM_H

#include "client/ctl/common/arguments.h"
#include "client/ctl/common/file.h"
#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"

struct ctl_stream {
	struct config *config;
	struct stores *stores; /* NULL: no dataset has a URL */
	struct catalog *catalog;
	const struct stream *stream;
};

/* @config: path of the file. After a failure nothing is to be closed. */
bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream);
void ctl_stream_close(struct ctl_stream *s);

struct ctl_history {
	struct cursor cursor;
	struct order order; /* from its first mix on; borrows from the cursor */
};

/*
 * Takes the mixes from the cursor file that reaches furthest of @n @paths; or from the cursor that
 * tokend keeps of run @run, which may also be the name of a cursor's file; or from the config.
 * Paths and @run exclude each other. It fails if one of @paths is not on the past of that cursor.
 * ctl_history_close() is needed only after success.
 */
bool ctl_history_open(struct ctl_history *h, const struct ctl_stream *s, const char *const *paths,
	unsigned n, const char *run);
void ctl_history_close(struct ctl_history *h);
/* Is @from between the first known mix and the stream's end? Prints an error otherwise. */
bool ctl_history_has(const struct ctl_history *h, uint64_t from);
/* Have two cursors the same mix from the same position on, with the same past? */
bool ctl_same_segment(const struct order_segment *a, const struct order_segment *b);

/* The options that give the config, @paths and @run. */
#define CTL_HISTORY_CURSOR                                                                         \
	{                                                                                          \
		.name = "cursor", .kind = CTL_LIST, .value = "FILE",                               \
		.help = "cursor of the run to take its mixes from; default: the config's mixes"    \
	}
#define CTL_HISTORY_RUN                                                                            \
	{                                                                                          \
		.name = "run", .value = "RUN",                                                     \
		.help = "run to take the mixes of, from its last cursor in state_dir, or from a "  \
			"cursor's file"                                                            \
	}
/* The first options of a command with these. */
enum { CTL_HISTORY_CONFIG, CTL_HISTORY_FILES, CTL_HISTORY_NAME, CTL_HISTORY_OPTIONS };
#define CTL_HISTORY CTL_CONFIG_NEEDED, CTL_HISTORY_CURSOR, CTL_HISTORY_RUN

/*
 * Runs a command STREAM on its stream and history. @all: opens also the other streams of the
 * config. They share the cache, which decides whether a dataset is read in pieces. Returns an exit
 * status.
 */
int ctl_with_history(const struct ctl_arguments *a, bool all,
	int (*run)(const struct ctl_arguments *a, const struct ctl_stream *s,
		const struct ctl_history *h));

/* ---- tokens ---- */

struct ctl_windows;

/* A window of a cursor's dataset. */
struct ctl_window {
	const struct cursor *cursor;
	const struct dataset *dataset; /* of the config; NULL: it no longer has it */
	struct order_place place;
};

/*
 * Gets the items that were added, in order, with the tokens of their windows: seq_len + extra, in
 * the stream's width; NULL: the item has none. False: no more are wanted.
 */
typedef bool ctl_windows_take(void *context, const void *item, const void *tokens);

/* Reads windows for items of @item_bytes. Windows in a store are read many at once, so items may
 * wait for others. Borrows @s until closed. NULL after an error was printed. */
struct ctl_windows *ctl_windows_open(
	const struct ctl_stream *s, size_t item_bytes, ctl_windows_take *take, void *context);
/* Adds a copy of @item. @window NULL: it needs no tokens. False: @take returned it, or an error was
 * printed; then the items before it were taken. */
bool ctl_windows_add(struct ctl_windows *reader, const void *item, const struct ctl_window *window);
/* Takes the items that wait. */
bool ctl_windows_flush(struct ctl_windows *reader);
void ctl_windows_close(struct ctl_windows *reader);

#endif
