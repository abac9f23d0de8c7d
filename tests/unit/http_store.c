#include "tests/unit/http_store.h"

#include <arpa/inet.h>
#include <assert.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 64 };

struct http_store {
	int fd, port;
	pthread_t accepting, serving[CONNECTIONS];
	int connection[CONNECTIONS];
	unsigned connections;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool hold, stop;
	unsigned gets;
	uint64_t at[HTTP_STORE_LOG];
};

struct connection {
	struct http_store *store;
	int fd;
};

static bool send_all(int fd, const void *from, size_t n)
{
	const char *at = from;

	while (n > 0) {
		ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

		if (sent <= 0)
			return false;
		at += sent;
		n -= (size_t)sent;
	}
	return true;
}

/* Reads one request's head. False: the client closed. */
static bool receive(int fd, char head[8192])
{
	size_t n = 0;

	for (;;) {
		ssize_t got = recv(fd, head + n, 8191 - n, 0);

		if (got <= 0)
			return false;
		n += (size_t)got;
		head[n] = 0;
		if (strstr(head, "\r\n\r\n"))
			return true;
	}
}

static void count(struct http_store *store, uint64_t from)
{
	pthread_mutex_lock(&store->lock);
	store->at[store->gets++ % HTTP_STORE_LOG] = from;
	pthread_cond_broadcast(&store->changed);
	while (store->hold && !store->stop)
		pthread_cond_wait(&store->changed, &store->lock);
	pthread_mutex_unlock(&store->lock);
}

static bool answer(struct http_store *store, int fd, const char *request)
{
	const char *range = strstr(request, "Range: bytes=");
	uint64_t from = 0, to = HTTP_STORE_SIZE - 1;
	char head[300];

	assert(range && sscanf(range + 13, "%" SCNu64 "-%" SCNu64, &from, &to) == 2);
	assert(from <= to && to < HTTP_STORE_SIZE);
	count(store, from);
	size_t n = to - from + 1;
	uint8_t *body = malloc(n);

	for (size_t i = 0; i < n; i++)
		body[i] = http_store_byte(from + i);
	snprintf(head, sizeof(head),
		"HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Length: %zu\r\n"
		"Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%d\r\n\r\n",
		n, from, to, HTTP_STORE_SIZE);
	bool sent = send_all(fd, head, strlen(head)) && send_all(fd, body, n);

	free(body);
	return sent;
}

static void *serve(void *argument)
{
	struct connection c = *(struct connection *)argument;
	char head[8192];

	free(argument);
	while (receive(c.fd, head) && answer(c.store, c.fd, head))
		;
	shutdown(c.fd, SHUT_RDWR);
	return NULL;
}

static void *accept_all(void *argument)
{
	struct http_store *store = argument;
	int fd;

	while ((fd = accept(store->fd, NULL, NULL)) >= 0) {
		struct connection *c = malloc(sizeof(*c));

		*c = (struct connection){store, fd};
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
		pthread_mutex_lock(&store->lock);
		assert(store->connections < CONNECTIONS);
		store->connection[store->connections] = fd;
		pthread_create(&store->serving[store->connections++], NULL, serve, c);
		pthread_mutex_unlock(&store->lock);
	}
	return NULL;
}

struct http_store *http_store_open(void)
{
	struct http_store *store = calloc(1, sizeof(*store));
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(address);

	pthread_mutex_init(&store->lock, NULL);
	pthread_cond_init(&store->changed, NULL);
	store->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(bind(store->fd, (struct sockaddr *)&address, n) == 0 && listen(store->fd, 128) == 0);
	assert(getsockname(store->fd, (struct sockaddr *)&address, &n) == 0);
	store->port = ntohs(address.sin_port);
	pthread_create(&store->accepting, NULL, accept_all, store);
	return store;
}

void http_store_close(struct http_store *store)
{
	shutdown(store->fd, SHUT_RDWR);
	pthread_join(store->accepting, NULL);
	pthread_mutex_lock(&store->lock);
	store->stop = true;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
	for (unsigned i = 0; i < store->connections; i++) {
		shutdown(store->connection[i], SHUT_RDWR);
		pthread_join(store->serving[i], NULL);
		close(store->connection[i]);
	}
	close(store->fd);
	pthread_cond_destroy(&store->changed);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

int http_store_port(const struct http_store *store)
{
	return store->port;
}

void http_store_hold(struct http_store *store, bool hold)
{
	pthread_mutex_lock(&store->lock);
	store->hold = hold;
	pthread_cond_broadcast(&store->changed);
	pthread_mutex_unlock(&store->lock);
}

void http_store_wait(struct http_store *store, unsigned n)
{
	pthread_mutex_lock(&store->lock);
	while (store->gets < n)
		pthread_cond_wait(&store->changed, &store->lock);
	pthread_mutex_unlock(&store->lock);
}

unsigned http_store_gets(struct http_store *store)
{
	pthread_mutex_lock(&store->lock);
	unsigned gets = store->gets;

	pthread_mutex_unlock(&store->lock);
	return gets;
}

uint64_t http_store_at(struct http_store *store, unsigned i)
{
	pthread_mutex_lock(&store->lock);
	uint64_t at = store->at[i];

	pthread_mutex_unlock(&store->lock);
	return at;
}
