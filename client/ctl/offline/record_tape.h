/* Entries of records, one after another. */
#ifndef TOKEND_CTL_RECORD_TAPE_H
#define TOKEND_CTL_RECORD_TAPE_H

#include "client/ctl/offline/records.h"

struct record_tape {
	const struct records *records;
	uint32_t file; /* that is open as fd; fd -1: none */
	int fd;
	uint64_t at, end; /* bytes of the file that are still to be read */
	size_t have, next;
	uint64_t entry[2 * 4096];
};

void record_tape_init(struct record_tape *tape, const struct records *r);
/* Starts with the first entry of a file, or of a section. False after an error was printed. */
bool record_tape_file(struct record_tape *tape, uint32_t file);
bool record_tape_section(struct record_tape *tape, const struct record_section *section);
/* 1: a row, 0: the section's end, -1 after an error was printed. */
int record_tape_next(struct record_tape *tape, uint64_t *position, uint64_t *checksum);
void record_tape_close(struct record_tape *tape);

#endif
