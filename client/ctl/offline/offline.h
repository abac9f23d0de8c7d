/*
 * Commands that need no daemon, and what those about streams share: a stream of a config, opened
 * without a daemon; the mixes of a run; the tokens of windows, read from the shards; and the
 * records of `tokctl verify`. Functions that fail print a message and return false.
 */
#ifndef TOKEND_CTL_OFFLINE_H
#define TOKEND_CTL_OFFLINE_H

#include "client/ctl/common/ctl.h"
#include "daemon/catalog/catalog.h"
#include "daemon/config/config.h"
#include "proto/record.h"

#include <sys/param.h>
#include <sys/types.h>

extern const struct ctl_command ctl_plan, ctl_when, ctl_cost, ctl_inspect, ctl_manifest, ctl_pack,
	ctl_cursor, ctl_verify;

/* ---- streams ---- */

struct ctl_stream {
	struct config *config;
	struct stores *stores;
	struct catalog *catalog;
	const struct stream *stream;
};

/* @config: path of the file. @all: opens also its other streams; they share the cache, which
 * decides whether a dataset is read in pieces. After a failure nothing is to be closed. */
bool ctl_stream_open(struct ctl_stream *s, const char *config, const char *stream, bool all);
void ctl_stream_close(struct ctl_stream *s);

struct ctl_history {
	struct cursor cursor;
	struct order order;	    /* from its first mix on; borrows from the cursor */
	const struct dataset **map; /* [datasets] as stream_map() */
};

void ctl_history_close(struct ctl_history *h);
/* Fills in the rest from h->cursor. False after an error; ctl_history_close() is needed. */
bool ctl_history_map(struct ctl_history *h, const struct ctl_stream *s);
/* Is @from between the first known mix and the stream's end? Prints an error otherwise. */
bool ctl_history_has(const struct ctl_history *h, uint64_t from);
/* Have two cursors the same mix from the same position on, with the same past? */
bool ctl_same_segment(const struct order_segment *a, const struct order_segment *b);

/* The options that give the config and the mixes. */
#define CTL_HISTORY                                                                                \
	{CTL_CONFIG_NEEDED},                                                                       \
		{OPTION_LIST("cursor", "FILE",                                                     \
			"cursor of the run, to take its mixes from; default: the config's mixes, " \
			"as if `tokctl mix` had changed none")},                                   \
	{                                                                                          \
		OPTION_TEXT("run", "RUN",                                                          \
			"run whose mixes count, also those of `tokctl mix`: its name, if its "     \
			"last cursor is in state_dir, or the path of a cursor's file")             \
	}

/*
 * Runs a command STREAM on its stream, as ctl_stream_open() opens it, and history: the mixes of the
 * --cursor that reaches furthest, on whose past all others must be; or of the cursor that tokend
 * keeps of --run, which may also be the name of a cursor's file; or of the config. Returns an exit
 * status.
 */
int ctl_with_history(const struct ctl_arguments *a, bool all,
	int (*run)(const struct ctl_arguments *a, const struct ctl_stream *s,
		const struct ctl_history *h));

/* ---- tokens ---- */

/* A window of a cursor's dataset. */
struct ctl_window {
	const struct ctl_history *of; /* NULL: there is no window */
	struct order_place place;
};

/* Where the window's tokens begin. Returns its dataset, which has them, or NULL if the config no
 * longer has it. */
const struct dataset *ctl_window_locate(
	const struct ctl_window *w, uint64_t *shard, uint64_t *offset);

struct ctl_windows;

/*
 * Gets the items that were added, in order, with the tokens of their windows: seq_len + extra, in
 * the stream's width; NULL: the item has none.
 */
typedef void ctl_windows_take(void *context, const void *item, const void *tokens);

/* Reads windows for items of @item_bytes, which begin with a struct ctl_window. Windows in a store
 * are read many at once, so items may wait for others. One reader is open at a time. Borrows @s
 * until closed. NULL after an error was printed. */
struct ctl_windows *ctl_windows_open(
	const struct ctl_stream *s, size_t item_bytes, ctl_windows_take *take, void *context);
/* Adds a copy of @item. False after an error; then the items before it were taken. */
bool ctl_windows_add(struct ctl_windows *reader, const void *item);
/* Takes the items that wait. */
bool ctl_windows_flush(struct ctl_windows *reader);
void ctl_windows_close(struct ctl_windows *reader);

/* ---- records.c: which rows of the trainers' records count ---- */

/*
 * Only the beginnings are kept in memory; rows are read from the files each time.
 */
struct record_file {
	char *path;
	dev_t device;
	ino_t inode;
	uint64_t peer, pass; /* of the section that was judged last */
};

/* An order in which rows were served: that of a cursor. */
struct record_order {
	struct ctl_history history;
	uint64_t checksum; /* of the cursor's encoding */
	struct record_order *next;
};

/* A beginning and the rows that follow it. */
struct record_section {
	struct record_begin begin;
	struct record_file *file;
	const struct ctl_history *order;
	struct record_generation *generation;
	uint64_t pass;	      /* number of the pass over a finite stream */
	bool first, again;    /* its process begins; it begins its pass */
	uint64_t entry, rows; /* number of its first row in the file; number of rows */
	uint64_t top;	      /* after the highest position of all rows; 0: none */
	uint64_t limit;	      /* rows from this position on are void */
	uint64_t last;	      /* the least of these two */
};

struct record_generation {
	struct record_begin begin;     /* the first, but at the lowest position of all */
	struct record_section *opener; /* while the sections are sorted by time */
};

/* From a position on, until that of the next one: the order of the newest beginning. */
struct record_force {
	uint64_t from;
	const struct ctl_history *order;
};

/* Beginnings that follow each other in time with one position, world and micro_batch: those of the
 * ranks. */
struct record_life {
	struct record_begin begin; /* the first */
	uint64_t reached;	   /* the position that had been reached before it */
	uint64_t ranks;		   /* beginnings */
};

/* One pass of one peer. */
struct record_peer {
	uint64_t peer, pass;
	struct record_section *section; /* by generation, rank and time */
	size_t sections;
	struct record_generation *generation; /* ascending in time */
	size_t generations;
	struct record_force *force; /* ascending */
	size_t forces;
	struct record_life *life; /* ascending in time */
	size_t lives;
	/* A rank's file that begins before where an earlier file of it began, and voids rows that
	 * it does not reach. NULL: none. */
	const struct record_file *rewinding, *voided;
};

struct records {
	const struct ctl_stream *s;
	const struct ctl_history *given; /* NULL: each beginning has its own cursor */
	struct record_file *reading;
	struct record_file *file;
	size_t files;
	struct record_order *order;	/* the newest one first */
	struct record_section *section; /* by peer and pass */
	size_t sections;
	struct record_peer *peer;
	size_t peers;
	uint64_t passes; /* largest number of passes that a peer has begun */

	/* of all peers: room for one per section */
	struct record_generation *generation;
	struct record_force *force;
	struct record_life *life;
};

/* Adds @path: a file, or a directory's *.record. */
bool records_add(struct records *r, const char *path);
/*
 * Reads all files and judges which rows count. A file named twice is read once. Rejects records of
 * another stream than @s, which is borrowed. @given: NULL, or what counts for all rows instead of
 * the cursors in the records; borrowed.
 */
bool records_read(struct records *r, const struct ctl_stream *s, const struct ctl_history *given);
void records_free(struct records *r);

/* The order in which @position should have been served. */
const struct ctl_history *records_in_force(const struct record_peer *p, uint64_t position);

#endif
