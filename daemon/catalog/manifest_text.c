#include "daemon/catalog/manifest_text.h"

#include "proto/phrases.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_MOST (UINT64_C(4) << 30) /* bytes of an object */

/* Opens the file, without waiting for the writer of a FIFO. */
static FILE *open_file(const char *path, struct fault *fault)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
	struct stat st;

	if (!file) {
		fault_errno(fault, errno, "manifest", "%s", strerror(errno));
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return file;
	fault_set(fault, FAULT_DATA, "manifest", PHRASE_NOT_FILE);
	fclose(file);
	return NULL;
}

/* Reads the whole object. */
static FILE *open_object(struct stores *stores, const char *url, char **text, struct fault *fault)
{
	char etag[STORE_ETAG_BYTES];
	const char *key;
	size_t n;
	const struct store_bucket *bucket = NULL;

	if (stores)
		bucket = store_bucket(stores, url, &key, fault);
	else
		fault_set(fault, FAULT_ARGUMENT, "", "no stores are open");
	*text = bucket ? store_load(stores, bucket, key, TEXT_MOST, &n, etag, fault) : NULL;
	FILE *file = *text ? fmemopen(*text, n, "r") : NULL;

	if (*text && !file)
		fault_memory(fault);
	if (!file)
		snprintf(fault->field, sizeof(fault->field), "manifest");
	return file;
}

FILE *manifest_text_open(const char *path, struct stores *stores, char **text, struct fault *fault)
{
	*text = NULL;
	return store_is_url(path) ? open_object(stores, path, text, fault) : open_file(path, fault);
}
