/*
 * The proof for one peer and one pass: over a range of positions, the rows that its ranks recorded
 * must be exactly the order. It needs a bit of memory per position; records and shards are read row
 * by row.
 */
#ifndef TOKEND_CTL_PROOF_H
#define TOKEND_CTL_PROOF_H

#include "client/ctl/offline/history.h"
#include "client/ctl/offline/records.h"
#include "client/ctl/offline/stream.h"
#include "client/ctl/offline/windows.h"

enum finding_kind { REPEATED, LOST, ALTERED, FINDINGS };

enum { PROOF_SHOWN = 10 }; /* findings of each kind that are kept */

struct finding {
	uint64_t position, count; /* a range of positions; only LOST has more than 1 */
	uint32_t file;		  /* of the row; not for LOST */
};

struct stretch {
	uint64_t from, to;
};

struct proof_row; /* a recorded row */

struct proof_served {
	uint64_t samples;
	uint64_t epochs; /* the last that was reached + 1; 0: none */
};

struct proof {
	/* set by the caller */
	const struct records *records;
	const struct record_peer *peer;
	uint64_t from, to;
	/* work */
	struct ctl_windows *reader;
	void *tokens;		    /* of the rows of a block */
	struct proof_row *row_of;   /* [block] */
	struct ctl_window *windows; /* of rows that are read */
	uint64_t block, held;	    /* rows at most, and rows that are not judged yet */
	size_t bytes;
	void *other;	 /* the same in the other width */
	uint64_t *taken; /* one bit per position */

	/* the result */
	uint64_t samples, skipped, voided, outside, sum;
	struct proof_served *served; /* [records->datasets] */
	uint64_t found[FINDINGS];    /* number of positions */
	struct finding finding[FINDINGS][PROOF_SHOWN];
	unsigned shown[FINDINGS];
	/* Two files whose orders differ at that row; files[0] is NULL if there are none. */
	const char *files[2];
	uint64_t differ_at;
	struct stretch *skip; /* skipped by request: ascending, disjoint, within the range */
	size_t skips;
};

/* Fills in the result. False after an error was printed. Call proof_free() either way. */
bool proof_run(struct proof *p);
void proof_free(struct proof *p);

/* Where the order @o has @position. False: it does not have it. */
bool proof_place(const struct record_order *o, uint64_t position, struct order_place *place);
/* The generation that should have taken @position. NULL: the position is before all of them. */
const struct record_generation *proof_generation(const struct proof *p, uint64_t position);
/* The rank of @g that should have taken @position. */
uint64_t proof_rank(const struct record_generation *g, uint64_t position);
/*
 * If the first lost row is missing only because its rank stopped earlier than other ranks, returns
 * the position at which that incomplete last step begins; otherwise 0.
 */
uint64_t proof_whole_to(const struct proof *p);

#endif
