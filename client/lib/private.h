/*
 * The daemon of a config file: the one at the socket that the config names, otherwise a private
 * daemon. `tokctl start` finds it, or starts it, in a process of its own. So the library needs
 * neither the config's parser nor the lock that decides who starts a daemon, and no fork of the
 * trainer can keep that lock.
 *
 * tokctl prints one line when it knows the socket: "shared PATH" or "private PATH". It ends when a
 * private daemon answers there, or with the message of one that failed.
 */
#ifndef TOKEND_PRIVATE_H
#define TOKEND_PRIVATE_H

#include "client/lib/handle.h"

/*
 * Sets t->socket, and t->config if the daemon is a private one. Waits for tokctl's line for up to
 * @ms. Returns 0, or ESTART, ECONNECT, EMEMORY, EAGAIN.
 */
int private_find(struct tokend *t, const char *config, uint32_t ms);
/* Uses the private daemon of @config at the socket that t->socket is. Returns 0 or EMEMORY. */
int private_join(struct tokend *t, const char *config);
/*
 * Nobody listens at t->socket: has a private daemon started there, without waiting for it. Returns
 * 0; or ESTART if the one that was started has failed. The next call then tries again.
 */
int private_absent(struct tokend *t);
/* Ends the process of tokctl, if there is one. The daemon lives on. */
void private_end(struct tokend *t);

#endif
