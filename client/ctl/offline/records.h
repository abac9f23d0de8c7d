/*
 * Reads trainers' records for `tokctl verify`, and judges which rows count. proto/record.h defines
 * the format. Only the beginnings are kept in memory; rows are read from the files each time.
 */
#ifndef TOKEND_CTL_RECORDS_H
#define TOKEND_CTL_RECORDS_H

#include "client/ctl/offline/stream.h"
#include "proto/record.h"

#include <sys/types.h>

struct record_file {
	char *path;
	dev_t device;
	ino_t inode;
};

/* An order in which rows were served: that of a cursor. */
struct record_order {
	struct cursor cursor;
	uint64_t checksum;	    /* of its encoding */
	struct order order;	    /* borrows from the cursor */
	const struct dataset **map; /* [datasets] as stream_map() */
	uint32_t *name;		    /* [datasets] numbers in records.dataset */
};

/* A dataset that any of the cursors has. */
struct record_dataset {
	const char *name;
	uint64_t windows;
};

/* A beginning and the rows that follow it. */
struct record_section {
	struct record_begin begin;
	uint32_t file, generation;
	uint32_t order;	      /* number in records.order */
	uint64_t pass;	      /* number of the pass over a finite stream */
	bool again;	      /* it begins its pass */
	uint64_t entry, rows; /* number of its first row in the file; number of rows */
	uint64_t top;	      /* after the highest position of all rows; 0: none */
	uint64_t limit;	      /* rows from this position on are void */
	uint64_t last;	      /* after the highest position that counts; 0: none */
};

struct record_generation {
	uint64_t position, world, micro_batch;
	uint64_t limit; /* a later generation makes rows from this position on void */
	size_t opener;	/* number, by time, of the section that opened it */
};

/* From a position on, until that of the next one: the order of the newest beginning, and its file.
 */
struct record_force {
	uint64_t from;
	uint32_t order, file;
};

/* One pass of one peer. The arrays below have its sections and generations only. */
struct record_peer {
	uint64_t peer, pass;
	struct record_section *section; /* by file and entry */
	size_t sections;
	struct record_generation *generation; /* ascending in time */
	size_t generations;
	struct record_force *force; /* ascending */
	size_t forces;
	/* A rank's file that begins before where an earlier file of it began, and voids rows that
	 * it does not reach. */
	bool rewound;
	uint32_t rewinding, voided;
};

struct records {
	const struct ctl_stream *s;
	struct record_file *file;
	size_t files;
	struct record_order *order;
	size_t orders;
	struct record_dataset *dataset; /* names borrow from the orders */
	size_t datasets;
	struct record_section *section; /* by peer and pass */
	size_t sections;
	struct record_peer *peer;
	size_t peers;
	uint64_t passes; /* largest number of passes that a peer has begun */
};

/* Adds @path: a file, or a directory's *.record. Errors are printed. */
bool records_add(struct records *r, const char *path);
/* Writes up to @bytes of the names of the runs that the files' names have, as Loader's record=
 * gives them: RUN.RANK-PEER.PID-TIME.record. Returns how many runs there are. */
size_t records_runs(const struct records *r, char *names, size_t bytes);
/*
 * Reads all files and judges which rows count. A file named twice is read once. Rejects records of
 * another stream than @s, which is borrowed. @cursor: NULL, or the one that counts for all rows
 * instead of those in the records. Errors are printed.
 */
bool records_read(struct records *r, const struct ctl_stream *s, const struct cursor *cursor);
void records_free(struct records *r);

#endif
