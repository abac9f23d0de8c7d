/*
 * Schedules the looks at open files (look.h): after reads of a file ended, and before they are
 * returned. All reads that ended since the file's last look share the next one. The data thread
 * looks itself if the file systems of all descriptors of the file answer without waiting. Otherwise
 * the look is a work in the pool, one at a time for each file.
 */
#ifndef TOKEND_READER_WATCH_H
#define TOKEND_READER_WATCH_H

#include "daemon/reader/files.h"

STAILQ_HEAD(watched, file);

/* Converts the result of statx() to that of stat(). */
struct stat stat_of(const struct statx *found);

/* After the file was opened; file->found is its state. */
void watch_open(struct file *file);
/* In the pool, after file->shard was opened: watches the side files, too. False: file->fault. */
bool watch_sides(struct file *file);
/* In the data thread, when the file is ready. */
void watch_begin(struct file *file);
/* Queues a look, because a read of the bytes at @at (SIZE_MAX: unknown) has ended. */
void watch_add(struct watched *watched, struct file *file, uint64_t at);
/* Takes the next file to look at, and moves its ended reads to file->watch.held. NULL: none. */
struct file *watch_next(struct watched *watched);
/* Looks, if that does not block, and puts the outcome into file->fault: FAULT_CHANGED, or a failed
 * system call, or none. False: submit file->watch.work, whose call looks. */
bool watch_look(struct file *file);
/* The file of such a work. */
struct file *watch_file(struct io_work *work);
/* After the outcome of a look was handled: queues the next if reads have ended meanwhile. */
void watch_end(struct watched *watched, struct file *file);

#endif
