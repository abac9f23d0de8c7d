/*
 * An HTTP server in threads of the test, with one object of every name: byte i of each is
 * http_store_byte(i). It counts GETs, and can hold its answers.
 */
#ifndef TEST_HTTP_STORE_H
#define TEST_HTTP_STORE_H

#include <stdbool.h>
#include <stdint.h>

enum { HTTP_STORE_SIZE = 64 * 1024 * 1024, HTTP_STORE_LOG = 4096 };

struct http_store; /* one per test */

struct http_store *http_store_open(void);
void http_store_close(struct http_store *store);
int http_store_port(const struct http_store *store);
/* Requests are answered only while it is not held. */
void http_store_hold(struct http_store *store, bool hold);
/* Waits until @n GETs have come since the start. */
void http_store_wait(struct http_store *store, unsigned n);
unsigned http_store_gets(struct http_store *store);
/* The first byte of GET number @i. */
uint64_t http_store_at(struct http_store *store, unsigned i);

static inline uint8_t http_store_byte(uint64_t i)
{
	return (uint8_t)((i * UINT64_C(0x9E3779B97F4A7C15)) >> 56);
}

#endif
