/* Looks for daemons at the places of proto/place.h, with the environment of this process. */
#ifndef TOKEND_PLACES_H
#define TOKEND_PLACES_H

#include "proto/place.h"

/* Lists the sockets at which a client looks. @option and @config: those that were named, or NULL.
 */
void places_read(struct places *places, const char *option, const char *config);
/*
 * True if the socket at @place may be used: somebody named it, or it is the default, or its
 * directory belongs to this user, and no other may write to it. Otherwise false, and @why says why
 * not.
 */
bool place_may_use(const struct place *place, char why[LIMIT_TEXT_BYTES]);
/* True if a process listens at @path, or if that cannot be found out. Otherwise false, and *@error
 * is the errno. */
bool place_is_live(const char *path, int *error);
/*
 * The socket to use: the first usable place where somebody listens. If nobody listens anywhere, the
 * first usable one that exists, because a killed daemon leaves its socket and may come back.
 */
const char *places_choose(const struct places *places);
/* Writes each of @n places and why it is of no use: "PATH (No such file or directory), PATH (…)".
 */
void places_tell(const struct place *place, unsigned n, char text[LIMIT_TEXT_BYTES]);

#endif
