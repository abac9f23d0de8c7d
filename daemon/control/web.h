/* The pages at the port of `metrics:`: a table of paths for http.h. All on the loop. */
#ifndef TOKEND_WEB_H
#define TOKEND_WEB_H

#include "daemon/control/http.h"

struct control;

/* Serves at @fd, a listening TCP socket, or at @address if @fd is -1, as http_start(). */
struct http *web_start(struct control *control, const char *address, int fd, struct fault *fault);
/* As http_stop(). */
void web_stop(struct control *control, struct http *http);

#endif
