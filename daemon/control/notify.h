/* systemd's protocol for services: READY=1, the watchdog, passed sockets. Too small for libsystemd.
 */
#ifndef TOKEND_NOTIFY_H
#define TOKEND_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Sends @state ("READY=1", …) to $NOTIFY_SOCKET, if that is set. */
void notify(const char *state);
/* Logs @why, and reports it to systemd for `systemctl status`. Returns the exit code, 1. */
int notify_failed_start(const char *why);
/* The period at which to send "WATCHDOG=1", in ms; 0: never. */
uint64_t notify_watchdog_ms(void);
/* Sends WATCHDOG=1 from a thread until the start ends: after a reload systemd expects it, and a
 * start may take minutes. */
void notify_starting(bool is);
/* The socket for clients that systemd passed, or -1. */
int notify_listen_fd(void);
#endif
