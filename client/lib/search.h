/*
 * How long a search for a daemon goes on, and what it says meanwhile. What passes by itself is
 * waited for, up to the deadline: a daemon that is starting or being restarted, and a refusal that
 * is marked as passing, because others hold the memory or the connections. What does not pass is an
 * error at once.
 */
#ifndef TOKEND_SEARCH_H
#define TOKEND_SEARCH_H

#include "client/lib/handle.h"

void search_begin(struct search *s, const struct patience *patience);
void search_end(struct search *s);
/* This try failed, with errno @error or the passing refusal @refused that is the handle's error.
 * The next one follows after a while. */
void search_later(struct tokend *t, struct search *s, int error, int refused);
/* Did nobody listen at the last try? */
bool search_nobody(const struct search *s);
/* When the search is over if nothing changes, in ns. */
int64_t search_give_up(const struct search *s);
/* When search_warn() has something to say again, in ns. */
int64_t search_warn_at(const struct search *s);
/* Says what is waited for, if it is time. 0, or TOKEND_EAGAIN. */
int search_warn(struct tokend *t, struct search *s);
/* The error at the end of a search that found nothing. */
int search_gave_up(struct tokend *t, const struct search *s);

#endif
