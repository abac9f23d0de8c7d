/* Reads the entries of record files in order. */
#ifndef TOKEND_CTL_RECORD_TAPE_H
#define TOKEND_CTL_RECORD_TAPE_H

#include "client/ctl/offline/records.h"

struct record_tape {
	const struct records *records;
	uint32_t file;	   /* the open one */
	int fd;		   /* -1: none is open */
	uint64_t at, end;  /* byte range of the file still to be read */
	size_t have, next; /* entries in @entry */
	uint64_t entry[2 * 4096];
};

void record_tape_init(struct record_tape *tape, const struct records *r);
/* Moves to the first entry of a file, or of a section. False after an error was printed. */
bool record_tape_file(struct record_tape *tape, uint32_t file);
bool record_tape_section(struct record_tape *tape, const struct record_section *section);
/* Reads the next entry, two little-endian words. 1: done; 0: the end of the file or section; -1: an
 * error was printed. */
int record_tape_next(struct record_tape *tape, uint64_t entry[2]);
void record_tape_close(struct record_tape *tape);

#endif
