/*
 * How long a search for a daemon lasts, and its warnings. Passing conditions are waited for, up to
 * the deadline: a daemon that is starting or restarting, and a refusal with the `passing` flag,
 * because other sessions use the memory or the connections. All other failures are errors at once.
 */
#ifndef TOKEND_SEARCH_H
#define TOKEND_SEARCH_H

#include "client/lib/handle.h"

void search_begin(struct search *s, const struct patience *patience);
void search_end(struct search *s);
/* The last try failed, with errno @error or with the passing refusal @refused, which is the
 * handle's last failure. Schedules the next one. */
void search_later(struct tokend *t, struct search *s, int error, int refused);
/* The attach under way, if any, is void: the next try is due. */
void search_again(struct search *s);
/* True if no process listened at the last try. */
bool search_nobody(const struct search *s);
/* The time at which the search ends if nothing changes, in ns. */
int64_t search_give_up(const struct search *s);
/* Calls warn() if a warning is due. Returns 0 or TOKEND_EAGAIN. */
int search_warn(struct tokend *t, struct search *s);
/* Returns the error of a search that found no daemon. */
int search_gave_up(struct tokend *t, const struct search *s);

#endif
