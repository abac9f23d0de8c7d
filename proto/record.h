/*
 * Records of what a trainer took, for `tokctl verify`. A file is a sequence of entries of 16 bytes,
 * two little-endian u64, appended by one process. An incomplete entry or beginning is ignored.
 *
 *   row        position, checksum     a row that tokend_next() returned; no padding rows
 *   beginning  RECORD_BEGIN, a kind   then a struct record_begin, then the cursor of the run, at
 *                                     the start of its first segment, in framed entries. The rows
 *                                     up to the next beginning belong to it.
 *
 * A beginning is written with the first row that is taken after tokend_record(), after a seek to
 * another position, rank, world or micro-batch, and after a change of the mixes. A reconnection to
 * a daemon writes none, and a session that took nothing leaves an empty file. A session that skips,
 * or took rows and then seeks forwards, writes a beginning at once: it may save its state and end
 * before its next row. If a session calls tokend_commit(), all of this is written at the commit.
 *
 * No row has the position RECORD_BEGIN, and no entry inside a beginning looks like the first entry
 * of one. So the beginning after a torn one reveals it.
 *
 * Which rows count. Beginnings are ordered by time, and within a file by their place in it. So the
 * clocks of the nodes must differ by less than the interval between two changes of a run. The ranks
 * of one world and micro-batch from some position on are a generation. They share a grid: positions
 * modulo world × micro_batch.
 *   - A beginning on the grid of the newest generation is a rank that joins it or returns to it. It
 *     voids all rows that this rank recorded in it from its position on; they are taken again.
 *   - A beginning with the world, micro-batch and position of an older generation that its rank has
 *     not joined is a late member of that generation. But if a member of that generation begins
 *     there again, too, it is the first of a new generation.
 *   - Any other beginning opens a new generation, and voids all rows of older generations from its
 *     position on: the run was restarted from a checkpoint, or rescaled.
 * A beginning without rows is ignored, unless it moves forwards. A process begins at its first row
 * or skip. The way it got there, for example by loading a checkpoint, is not a skip. If a beginning
 * moves forwards and no rank took the samples from `left` to `position`, the run skipped them.
 *
 * Each row is judged by the cursor of its own beginning. Where rows of several beginnings count,
 * their cursors must agree; the newest is right.
 *
 * Each pass is verified separately: a beginning voids nothing of an earlier pass. A process that
 * begins belongs to the last pass that all ranks of its world have begun. If it begins another pass
 * at the end of the stream, that is the next one, unless the last one was not completed: then the
 * run was restarted from the end of the one before, and begins it again. Peers of a rank take the
 * same rows; the records of each peer are verified separately.
 */
#ifndef TOKEND_RECORD_H
#define TOKEND_RECORD_H

#include "proto/cursor.h"

#define RECORD_BEGIN UINT64_MAX
#define RECORD_KIND  UINT64_C(0x74646b7200000200) /* version 2; no rank is so large */
#define RECORD_FIRST 1				  /* its process has taken no row before */
#define RECORD_PASS  2 /* of another pass over a finite stream whose end this process saw */

struct record_begin {
	uint64_t time_ns;  /* CLOCK_REALTIME */
	uint64_t position; /* of the ranks; ≥ the start of the cursor's first segment */
	uint64_t left;	   /* position before the move; = position where a process begins, unless
			      it begins with RECORD_PASS */
	uint64_t rank, world, micro_batch;
	uint64_t peer;
	uint64_t cursor_bytes; /* ≤ LIMIT_CURSOR_BYTES */
};

enum {
	RECORD_ENTRY_BYTES = 16,
	RECORD_FRAME_BYTES = 15, /* of a cursor in an entry, whose byte 7 is 0 */
	RECORD_WORDS = sizeof(struct record_begin) / RECORD_ENTRY_BYTES,
};

_Static_assert(sizeof(struct record_begin) == 64, "layout of the file");

/* The entries of a whole beginning, with its marker. */
static inline size_t record_begin_entries(size_t cursor_bytes)
{
	return 1 + RECORD_WORDS + (cursor_bytes + RECORD_FRAME_BYTES - 1) / RECORD_FRAME_BYTES;
}

/* Are the @n bytes at @entry, at most RECORD_ENTRY_BYTES, the first bytes of a beginning? */
bool record_is_beginning(const void *entry, size_t n);
/* Writes the beginning @begin of @kind with its @cursor to @entries, record_begin_entries() of
 * them. */
void record_put_beginning(
	void *entries, unsigned kind, const struct record_begin *begin, const void *cursor);
/* Reads the @n bytes of the cursor that follows a struct record_begin. */
void record_get_cursor(void *cursor, size_t n, const void *entries);

/*
 * Checksum of a row: of its position, and of its tokens in the width in which they were served. The
 * sum over the rows of a range of positions does not depend on the ranks. The bytes, padded with
 * zeros to a multiple of 32, are little-endian words in four lanes, word w in lane w mod 4:
 *
 *   v = (v ^ word) · 0xBF58476D1CE4E5B9, v ^= v >> 32, from v = 0
 *
 * The checksum is derive(position, bytes, lane 0, 1, 2, 3). A row with one word changed always has
 * another checksum.
 */
uint64_t record_checksum(uint64_t position, const void *tokens, size_t bytes);

#endif
