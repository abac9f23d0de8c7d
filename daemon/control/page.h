/* The page for people at the metrics port: its files, and the JSON that it fetches each second. */
#ifndef TOKEND_PAGE_H
#define TOKEND_PAGE_H

#include <stdio.h>

/*
 * Routes of http.h; @context is the struct control. The page is read-only. It shows what metrics
 * and `tokctl status` show, and the last faults, but no directories: anyone who reaches the port
 * can read it. All lists are bounded.
 */
unsigned page_html(void *context, FILE *to);
unsigned page_css(void *context, FILE *to);
unsigned page_js(void *context, FILE *to);
unsigned page_status(void *context, FILE *to);

#endif
