/* systemd's protocol for services: READY=1, the watchdog, passed sockets. Too small for libsystemd.
 */
#ifndef TOKEND_NOTIFY_H
#define TOKEND_NOTIFY_H

#include <stdint.h>

/* Sends @state ("READY=1", …) to $NOTIFY_SOCKET, if that is set. */
void notify(const char *state);
/* Logs @why, and reports it to systemd for `systemctl status`. Returns the exit code, 1. */
int notify_failed_start(const char *why);
/* The period at which to send "WATCHDOG=1", in ms; 0: never. */
uint64_t notify_watchdog_ms(void);
/* The socket for clients that systemd passed, or -1. */
int notify_listen_fd(void);
#endif
