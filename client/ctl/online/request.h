/*
 * A request to a running job, and the participants that answer it. Errors are printed.
 */
#ifndef TOKEND_CTL_REQUEST_H
#define TOKEND_CTL_REQUEST_H

#include "client/ctl/common/out.h"
#include "client/ctl/online/talk.h"
#include "proto/cursor.h"

enum { REQUEST_NAMED = 8 }; /* most participants named in one line */
enum { REQUEST_NAMES_BYTES = REQUEST_NAMED * 170 + 40 };

/* Sets of outcomes, one bit each. */
enum {
	UNSEEN = 1 << 0,
	NOTED = 1 << WIRE_NOTED,
	ANSWERED = 1 << WIRE_DONE | 1 << WIRE_FAILED,
};

struct participant {
	uint64_t rank, peer, pid, world, micro_batch;
	char host[LIMIT_NAME_BYTES + 1];
	enum wire_outcome outcome; /* 0: no answer, known from the status only */
	bool same;		   /* its cursor equals the first one's */
	char text[LIMIT_TEXT_BYTES + 1];
};

struct request {
	const char *kind, *stream, *run, *tag; /* NULL: not given */
	bool json;
	uint64_t timeout_s, world, micro_batch; /* micro_batch 0: unchanged */
	char args[WIRE_ARGS_BYTES];
	size_t args_length;

	struct ctl_link link;
	int signals;
	uint64_t serial; /* of the query that created it */
	struct ctl_out out;
	uint64_t number, sessions, waiting;
	char run_name[LIMIT_NAME_BYTES + 1];
	struct participant *participant;
	size_t participants;
	struct cursor before;
	bool has_before;
	/* From the first participant that was done. */
	struct cursor cursor;
	bool has_cursor, has_acts_from;
	uint64_t from, acts_from, world_before, micro_batch_before;
};

/* ---- request_answers.c ---- */

/* Finds or adds the participant that sent @w. NULL: out of memory. */
struct participant *participant_seen(struct request *r, const struct wire *w);
/* "rank 1 (pid 12 on HOST)" */
const char *participant_name(const struct participant *p, char *to, size_t room);
/* Writes the names of those whose outcome is in the set @which to @to. Returns their number. */
size_t participants_name(const struct request *r, unsigned which, char *to, size_t room);
/* Stores and prints an answer. False after an error. */
bool request_answered(struct request *r, const struct wire *w);

/* ---- request_result.c ---- */

/* Prints the result, after all have answered or are gone. Returns an exit status. */
int request_conclude(struct request *r);

#endif
