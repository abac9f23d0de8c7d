/*
 * When open files are looked at again (look.h): after reads of them ended, and before anybody
 * learns that they did. All reads of a file that ended since its last look share the next one. A
 * look is a system call of the data thread if the file systems of all its descriptors answer
 * without waiting. Otherwise it is a work in the pool, one at a time for each file.
 */
#ifndef TOKEND_READER_WATCH_H
#define TOKEND_READER_WATCH_H

#include "daemon/reader/files.h"

STAILQ_HEAD(watched, file);

/* statx() as stat(). */
struct stat stat_of(const struct statx *found);

/* The file was opened, and file->found is what it is. */
void watch_open(struct file *file);
/* In the pool, with file->shard open: also looks at the shard's side files. False: file->fault. */
bool watch_sides(struct file *file);
/* In the data thread, when the file is ready. */
void watch_begin(struct file *file);
/* A read of the file has ended, of bytes that begin @at (SIZE_MAX: anywhere): it has to be looked
 * at. */
void watch_add(struct watched *watched, struct file *file, uint64_t at);
/* The next file to look at, with the reads that are concerned in file->watch.held; NULL: none. */
struct file *watch_next(struct watched *watched);
/* Looks, if that needs no waiting: file->fault says what was found, with FAULT_CHANGED, or why it
 * could not. False: submit file->watch.work, and go on when it is back. */
bool watch_look(struct file *file);
/* The file of a work that was submitted so. */
struct file *watch_file(struct io_work *work);
/* After a look whose outcome was dealt with: reads that ended meanwhile ask for the next. */
void watch_end(struct watched *watched, struct file *file);

#endif
