/*
 * Where the daemon listens.
 */
#ifndef TOKEND_CTL_SOCKET_H
#define TOKEND_CTL_SOCKET_H

/* @option, else $TOKEND_SOCKET, else the socket of the config @config, else the usual place. Owned
 * by the caller; NULL after an error was printed. @option and @config may be NULL. */
char *ctl_socket(const char *option, const char *config);

#endif
