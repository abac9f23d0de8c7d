/*
 * Finds the daemon's socket.
 */
#ifndef TOKEND_CTL_SOCKET_H
#define TOKEND_CTL_SOCKET_H

/*
 * The path of the socket: @option, otherwise $TOKEND_SOCKET, otherwise the socket of the config
 * file @config, otherwise the default of this user. If another file is served there, or none, the
 * socket of the private daemon of @config, if that exists. @option and @config may be NULL. The
 * caller frees it. NULL after an error was printed.
 */
char *ctl_socket(const char *option, const char *config);

#endif
