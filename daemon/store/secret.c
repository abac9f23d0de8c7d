#include "daemon/store/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *secret_new(size_t bytes)
{
	void *secret =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (secret == MAP_FAILED)
		return NULL;
	madvise(secret, bytes, MADV_DONTDUMP);
	madvise(secret, bytes, MADV_WIPEONFORK);
	mlock(secret, bytes); /* not into swap, if the limit allows it */
	return secret;
}

void secret_free(void *secret, size_t bytes)
{
	if (!secret)
		return;
	explicit_bzero(secret, bytes);
	munmap(secret, bytes);
}

long secret_read(const char *path, char *text, size_t bytes, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
	size_t n = 0;
	ssize_t got = fd < 0 ? -1 : 1;

	while (got > 0 && n < bytes) {
		got = read(fd, text + n, bytes - n);
		if (got < 0 && errno == EINTR)
			got = 1;
		else if (got > 0)
			n += (size_t)got;
	}
	if (got < 0)
		fault_errno(fault, errno, "", "%s: %s", path, strerror(errno));
	else if (n == bytes)
		fault_set(fault, FAULT_DATA, "", "%s: is larger than %zu bytes", path, bytes - 1);
	if (fd >= 0)
		close(fd);
	if (got < 0 || n == bytes)
		return -1;
	text[n] = 0;
	return (long)n;
}

static _Thread_local bool harmless;

void secret_heap_harmless(bool is)
{
	harmless = is;
}

void secret_heap_free(void *at)
{
	if (at && !harmless)
		explicit_bzero(at, malloc_usable_size(at));
	free(at);
}

void *secret_heap_realloc(void *at, size_t bytes)
{
	void *copy = malloc(bytes);
	size_t before = at ? malloc_usable_size(at) : 0;

	if (!copy)
		return NULL;
	if (at)
		memcpy(copy, at, before < bytes ? before : bytes);
	secret_heap_free(at);
	return copy;
}
