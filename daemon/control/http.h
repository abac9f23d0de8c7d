/*
 * A small HTTP server on the control loop, for pages that a program or a browser reads. It serves
 * GET and HEAD of the paths in a table, and nothing else. Each answer is written in one go, and all
 * take bounded memory.
 */
#ifndef TOKEND_HTTP_H
#define TOKEND_HTTP_H

#include "proto/fault.h"

#include <stdio.h>
#include <uv.h>

struct http;

struct http_route {
	const char *path;
	const char *type; /* Content-Type */
	/* Writes the body and returns the status (200). On the loop. */
	unsigned (*answer)(void *context, FILE *to);
};

/*
 * Serves @routes, which end with a NULL path, at @fd, a listening TCP socket that it then owns. If
 * @fd is -1: at @address, "HOST:PORT" with a numeric host ([::1]:9464 for IPv6). @context is given
 * to the routes. NULL with @fault, whose code is FAULT_PERMISSION if all networks are forbidden. On
 * the loop, as http_stop().
 */
struct http *http_start(uv_loop_t *loop, const char *address, int fd,
	const struct http_route *routes, void *context, struct fault *fault);
/* Stops and frees it during the next turns of the loop. NULL does nothing. */
void http_stop(struct http *http);

#endif
