/*
 * When open files are looked at (look.h): after reads of them ended, and before anybody learns that
 * they did. All reads of a file that ended since its last look share the next one. It is a system
 * call of the data thread where every descriptor's file system answers without waiting, else a work
 * in the pool, of which a file has one at a time.
 */
#ifndef TOKEND_IO_WATCH_H
#define TOKEND_IO_WATCH_H

#include "daemon/reader/files.h"

STAILQ_HEAD(watched, file);

/* Can a descriptor's file system read without waiting? Where it cannot, this says so before it
 * looks at the file. */
bool file_knows_nowait(int fd);

/* The file was opened, and file->opening.found is what it is. */
void watch_open(struct file *file);
/* In the pool, with file->source open: also looks at what lies beside the shard. False: file->why.
 */
bool watch_sides(struct file *file);
/* In the data thread, when the file is ready. */
void watch_begin(struct file *file);
/* A read of the file has ended, of bytes that begin @at (SIZE_MAX: anywhere): it is to be looked
 * at. */
void watch_add(struct watched *watched, struct file *file, uint64_t at);
/* The next file to look at, with the reads that are concerned in file->watch.held; NULL: none. */
struct file *watch_next(struct watched *watched);
/* Looks, if that needs no waiting. False: submit file->watch.work, and go on when it is back. */
bool watch_look(struct file *file);
/* After a look whose outcome in file->watch was dealt with: reads that ended meanwhile ask for the
 * next. */
void watch_end(struct watched *watched, struct file *file);

#endif
