/* What tokctl serve and tokctl metrics share. */
#ifndef TOKEND_CTL_WEB_H
#define TOKEND_CTL_WEB_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Writes @status (ctl_ask_status(); NULL: the daemon does not answer) as text for Prometheus.
 * @sessions: with series for each session. */
void metrics_write(FILE *to, const json_t *status, bool sessions);

struct http {
	const char **host; /* names in Host: that are served, in addition to addresses */
	unsigned hosts;
	/* Writes the answer to a GET of @path, sets its Content-Type, and returns its status. */
	unsigned (*answer)(void *context, const char *path, FILE *to, const char **type);
	void *context;
};

/* A socket that listens at @address, "HOST:PORT" with a numeric host ([::1]:9464 for IPv6), or -1
 * after an error. */
int http_listen(const char *address);
/* Serves at @fd. Returns after an error only. */
void http_serve(const struct http *http, int fd);

#endif
