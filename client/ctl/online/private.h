/*
 * Private daemons: one per config and user, for configs that no other daemon serves.
 *
 * A lock file next to the socket decides who starts the daemon. The process that takes the lock
 * passes it to the daemon at start, and the daemon keeps it until it ends, also by a kill. So no
 * second daemon starts while one starts, serves or ends. When the daemon ends it removes lock and
 * log; after a kill the next daemon uses them.
 *
 * Functions that fail print a message.
 */
#ifndef TOKEND_CTL_PRIVATE_H
#define TOKEND_CTL_PRIVATE_H

#include "proto/wire.h"

/*
 * Writes the socket of the private daemon of @config, an absolute path. Its name depends on the
 * file's text: readers of an edited config must not find the daemon of the old one. Returns false
 * if the file cannot be read.
 */
bool private_socket(const char *config, char path[WIRE_SOCKET_BYTES]);
/* Writes the sockets of that daemon in each directory where it may be: it was perhaps started with
 * another $XDG_RUNTIME_DIR. Returns how many there are; 0 after an error. */
unsigned private_sockets(const char *config, char path[2][WIRE_SOCKET_BYTES]);
/* Makes the directory of socket @path, or checks that only this user may write there. */
bool private_directory(const char *path);
/* Takes the lock of socket @path. Returns a descriptor; -1 if another process has it; -2 after an
 * error. */
int private_lock(const char *path);

enum { PRIVATE_ASK_MS = 5000 }; /* limit of a reply from a daemon that may be another file's */
enum private_answer { PRIVATE_NONE, PRIVATE_OTHER, PRIVATE_SERVES, PRIVATE_UNTRUSTED };

/*
 * Asks the daemon at @path, for up to @ms, which file it serves. Returns PRIVATE_SERVES if that is
 * @config, an absolute path (NULL: any file). PRIVATE_NONE: it did not answer. PRIVATE_UNTRUSTED:
 * @fault says why. @reader: a descriptor; without a reader of that pipe it gives up. -1: none.
 */
enum private_answer private_ask(
	const char *path, const char *config, int ms, int reader, struct fault *fault);

#endif
