/*
 * Records of what a trainer took, for `tokctl verify`. A file is a sequence of entries of 16 bytes,
 * two little-endian u64, appended by one process; an entry or a beginning cut short is left out.
 *
 *   row         position, checksum              a row that tokend_next() handed out (no padding
 * rows) beginning   RECORD_BEGIN, RECORD_VERSION    and RECORD_WORDS more entries, a struct
 * record_begin; the rows up to the next beginning belong to it pass        RECORD_BEGIN,
 * RECORD_PASS       a beginning, too: of another pass over a finite stream, whose end this process
 * saw
 *
 * A beginning is written with the first row that is taken after tokend_record(), and after a seek
 * that goes to another position or changes rank, world or micro-batch (not after a mere change of
 * the mix, nor when a lost daemon is found). So a session that took nothing leaves an empty file.
 * One that took rows and then moves forwards, by a skip or a seek, says so at once: it may save its
 * state and end before its next row. In a session that calls tokend_commit(), all of this is
 * written once it is committed. Earlier clients wrote a beginning at tokend_record() and at every
 * seek. No row has the position RECORD_BEGIN, and no entry within a beginning looks like the first
 * of one, so a torn beginning is known by the one that follows it.
 *
 * What counts. Beginnings are taken by their time, each process's in the order of its file; so the
 * clocks of the nodes must agree better than two changes of a run follow each other. The ranks of a
 * world and micro-batch from some position on are a generation: they share a grid, positions modulo
 * world × micro_batch.
 *   - On the newest generation's grid a beginning is a rank that joins it, or comes back to it:
 * whatever that rank recorded in it from its position on is void, and taken anew.
 *   - With the very world, micro-batch and position of an older generation that its rank is not yet
 * in, it is a late member of that; or, if then one that it has already comes there too, the first
 * of a new one.
 *   - Else it opens a new generation, and makes void all that older ones recorded from its position
 * on: the run was restarted from a checkpoint, or rescaled. Beginnings that no row follows count
 * for nothing, unless their process took rows before and they go forwards. A process begins where
 * it takes its first row: how it came there, as by a checkpoint that it loads, is no skip, unless
 * it was asked to skip. Each pass is a proof of its own: a beginning makes nothing void that was
 * recorded in an earlier pass. A process that begins belongs to the last pass that all ranks of its
 * world have begun. From `left` to `position`, where a beginning goes forwards and nobody took
 * anything, the run was made to skip. Peers of a rank take the same rows: each peer's records are a
 * proof of their own.
 */
#ifndef TOKEND_RECORD_H
#define TOKEND_RECORD_H

#include "proto/cursor.h"

#define RECORD_BEGIN   UINT64_MAX
#define RECORD_VERSION 1
#define RECORD_PASS    (UINT64_C(1) << 32 | RECORD_VERSION)

struct record_begin {
	uint64_t time_ns;  /* CLOCK_REALTIME */
	uint64_t position; /* of the cursor */
	uint64_t left; /* where the session was before; = position where it comes from nowhere */
	uint64_t rank, world, micro_batch;
	uint64_t peer;
	uint64_t identity; /* record_identity(): files of other streams are refused */
};

enum { RECORD_ENTRY_BYTES = 16, RECORD_WORDS = sizeof(struct record_begin) / RECORD_ENTRY_BYTES };

/*
 * Checksum of a row's tokens in stored width, with its position: the sum over rows is one number
 * for a range of positions, whatever the ranks. The bytes, padded with zeros to a multiple of 32,
 * are little-endian words in four lanes, word w in lane w mod 4: v = (v ^ word) ·
 * 0xBF58476D1CE4E5B9, v ^= v >> 32, from v = 0. The checksum is derive(position, bytes, lane 0, 1,
 * 2, 3). A row with one word changed always has another one.
 */
uint64_t record_checksum(uint64_t position, const void *tokens, size_t bytes);

/* derive(seed, name_hash(stream), seq_len, extra, stride): of what all sessions of a stream share.
 */
uint64_t record_identity(const struct cursor *cursor);

#endif
