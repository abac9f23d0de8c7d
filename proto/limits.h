/*
 * Bounds that several rooms rely on, and bounds of input. Bounds that follow from the arithmetic of
 * the order are asserted in the order's files.
 */
#ifndef TOKEND_LIMITS_H
#define TOKEND_LIMITS_H

#include <stdint.h>

enum {
	LIMIT_DATASETS = 1024,		 /* in one stream */
	LIMIT_NAME_BYTES = 64,		 /* of the name of a stream, dataset, run or tag */
	LIMIT_RUN_BYTES = 53,		 /* of a run, without the @UID of a user */
	LIMIT_PACKET_BYTES = 128 * 1024, /* one message on the socket */
	LIMIT_CURSOR_BYTES = 96 * 1024,	 /* one encoded cursor, so that it fits in a message */
	LIMIT_TEXT_BYTES = 1024,	 /* an error text or a path in a message, with its 0 */
	LIMIT_DEPTH = 8,		 /* nesting of a message */
	LIMIT_MICRO_BATCH = 1 << 16,	 /* rows of one slot */
	LIMIT_SLOTS = 4096,		 /* slots of one ring */
	LIMIT_RING_ROWS = 1 << 22,	 /* rows of one ring: slots × micro-batch */
	LIMIT_BLOCK = 1024,		 /* positions: the order scrambles within a block */
	LIMIT_SESSIONS = 4096,		 /* sessions of one daemon */
	LIMIT_STREAMS = 1024,		 /* in one configuration */
	LIMIT_READS = 512,		 /* reads in flight in the data thread */
};

#define LIMIT_CHUNK_BYTES                                                                          \
	(UINT64_C(1) << 30)		/* registration chunk: no slot crosses a multiple of it */
#define LIMIT_WORLD (UINT64_C(1) << 32) /* data-parallel ranks */

_Static_assert(
	__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens, cursors and records are stored so");
_Static_assert(LIMIT_CURSOR_BYTES + LIMIT_DATASETS * 24 + 4 * LIMIT_NAME_BYTES + LIMIT_TEXT_BYTES <
		       LIMIT_PACKET_BYTES,
	"a cursor and its envelope fit in one packet, with what is known of its datasets");

#endif
