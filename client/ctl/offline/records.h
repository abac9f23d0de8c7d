/*
 * Reads trainers' records for `tokctl verify`, and judges which rows count. proto/record.h defines
 * the format. Only the beginnings are kept in memory; rows are read from the files each time.
 */
#ifndef TOKEND_CTL_RECORDS_H
#define TOKEND_CTL_RECORDS_H

#include "proto/record.h"

#include <sys/types.h>

struct record_file {
	char *path;
	dev_t device;
	ino_t inode;
};

/* A beginning and the rows that follow it. */
struct record_section {
	struct record_begin begin;
	uint32_t file, generation;
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

/* One pass of one peer. The arrays below have its sections and generations only. */
struct record_peer {
	uint64_t peer, pass;
	struct record_section *section; /* by file and entry */
	size_t sections;
	struct record_generation *generation; /* ascending in time */
	size_t generations;
	/* A rank's file that begins before where an earlier file of it began, and voids rows that
	 * it does not reach. */
	bool rewound;
	uint32_t rewinding, voided;
};

struct records {
	struct record_file *file;
	size_t files;
	struct record_section *section; /* by peer and pass */
	size_t sections;
	struct record_peer *peer;
	size_t peers;
	uint64_t passes; /* largest number of passes that a peer has begun */
};

/* Adds @path: a file, or a directory's *.record. Errors are printed. */
bool records_add(struct records *r, const char *path);
/* Writes the run that the names of all files name, as Loader's record= gives them:
 * RUN.RANK-PEER.PID-TIME.record. False: they do not, or name several. */
bool records_run(const struct records *r, char run[LIMIT_NAME_BYTES + 1]);
/* Reads all files and judges which rows count. A file named twice is read once. Rejects records
 * that do not have the record_identity() @identity, that of stream @stream. Errors are printed. */
bool records_read(struct records *r, uint64_t identity, const char *stream);
void records_free(struct records *r);

#endif
