/*
 * Records of trainers, read for `tokctl verify`: which rows there are, and which of them count. The
 * format is in proto/record.h. Only the beginnings are held in memory; rows are read from the files
 * each time.
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
	uint64_t pass;	      /* over a finite stream */
	bool again;	      /* it begins its pass */
	uint64_t entry, rows; /* of the file: the first row's number, and how many */
	uint64_t top;	      /* one past the highest position of all rows; 0: none */
	uint64_t limit;	      /* rows from there on are void */
	uint64_t last;	      /* one past the highest position that counts; 0: none */
};

struct record_generation {
	uint64_t position, world, micro_batch;
	uint64_t limit; /* where a later one makes it void */
	size_t opener;	/* the number, by time, of the section that opened it */
};

/* One pass of one peer, all the arrays sections and generations are of. */
struct record_peer {
	uint64_t peer, pass;
	struct record_section *section; /* by file and entry */
	size_t sections;
	struct record_generation *generation; /* ascending in time */
	size_t generations;
};

struct records {
	struct record_file *file;
	size_t files;
	struct record_section *section; /* by peer and pass */
	size_t sections;
	struct record_peer *peer;
	size_t peers;
	uint64_t passes; /* that have begun, of all peers */
};

/* Adds @path: a file, or a directory's *.record. Errors are printed. */
bool records_add(struct records *r, const char *path);
/* Reads them all and judges which rows count. A file named twice is read once; one that is none of
 * @identity (of stream @stream) is refused. Errors are printed. */
bool records_read(struct records *r, uint64_t identity, const char *stream);
void records_free(struct records *r);

#endif
