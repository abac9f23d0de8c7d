/* What systemd tells a service and hears from it: one datagram each way is not worth a library. */
#ifndef TOKEND_NOTIFY_H
#define TOKEND_NOTIFY_H

#include <stdint.h>

/* Sends @state ("READY=1", …) to $NOTIFY_SOCKET; nothing happens without one. */
void notify(const char *state);
/* How often "WATCHDOG=1" is due, in ms; 0: never. */
uint64_t notify_watchdog_ms(void);
/* The socket systemd listens on for us, or -1. */
int notify_listen_fd(void);

#endif
