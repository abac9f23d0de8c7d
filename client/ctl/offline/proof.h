/*
 * The proof for one peer and one pass: over a range of positions, what its ranks recorded must be
 * exactly the order. One bit a position is held; records and shards are read as they come.
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
	uint64_t position, count; /* a stretch of positions; 1 unless lost */
	uint32_t file;		  /* unless lost */
};

struct stretch {
	uint64_t from, to;
};

struct proof {
	/* the question */
	const struct ctl_stream *s;
	const struct ctl_history *history;
	const struct records *records;
	const struct record_peer *peer;
	uint64_t from, to;

	/* work */
	const struct dataset **map; /* [datasets] */
	struct ctl_windows *reader;
	void *tokens; /* of one window */
	size_t bytes;
	void *other;	 /* the same in the other width */
	uint64_t *taken; /* a bit a position */

	/* the answer */
	uint64_t samples, skipped, voided, outside, sum;
	uint64_t found[FINDINGS]; /* positions */
	struct finding finding[FINDINGS][PROOF_SHOWN];
	unsigned shown[FINDINGS];
	struct stretch *skip; /* left out by request: ascending, apart, within the range */
	size_t skips;
};

/* Fills in the answer. False after an error was printed. proof_free() is the caller's either way.
 */
bool proof_run(struct proof *p);
void proof_free(struct proof *p);

/* The window at @position. False: the order has none there. */
bool proof_place(const struct proof *p, uint64_t position, struct order_place *place);
/* The generation that should have taken @position; NULL: it is before all of them. */
const struct record_generation *proof_generation(const struct proof *p, uint64_t position);
/* The rank of @g that should have taken @position. */
uint64_t proof_rank(const struct record_generation *g, uint64_t position);
/*
 * If the first lost row is missing only because its rank stopped earlier than others, the last step
 * is not whole: the position at which that step begins; otherwise 0.
 */
uint64_t proof_whole_to(const struct proof *p);

#endif
