#include "daemon/store/cache_files.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char magic[16] = "tokend cache 1";

/* ---- names ---- */

const char *cache_head_url(const struct cache_head *head)
{
	return head->text;
}

const char *cache_head_etag(const struct cache_head *head)
{
	return head->text + strlen(head->text) + 1;
}

static void hash_head(const struct cache_head *head, size_t text_bytes, struct cache_hash *hash)
{
	uint8_t digest[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;

	sha256_init(&sha);
	sha256_update(&sha, offsetof(struct cache_head, text) + text_bytes - sizeof(head->sum),
		(const uint8_t *)head->magic);
	sha256_digest(&sha, sizeof(digest), digest);
	memcpy(hash->byte, digest, sizeof(hash->byte));
}

static uint64_t head_sum(const struct cache_head *head)
{
	return XXH64(head->magic, sizeof(*head) - sizeof(head->sum), 0);
}

bool cache_head_of(const struct url_place *place, const struct object *object,
	struct cache_head *head, struct cache_hash *hash)
{
	int n;

	memset(head, 0, sizeof(*head));
	memcpy(head->magic, magic, sizeof(magic));
	head->size = object->size;
	head->piece = object->piece;
	n = snprintf(head->text, sizeof(head->text), "%s/%s%c%s%c%s%s", place->name, object->key, 0,
		object->etag ? object->etag : "", 0, place->host, place->base);
	if (n < 0 || (size_t)n >= sizeof(head->text))
		return false;
	hash_head(head, (size_t)n, hash);
	return true;
}

bool cache_head_valid(const struct cache_head *head, const struct cache_hash *hash)
{
	struct cache_hash own;
	size_t text_bytes = sizeof(head->text), zeros = 0;

	if (memcmp(head->magic, magic, sizeof(magic)) != 0 || head->sum != head_sum(head) ||
		head->size == 0 || head->piece < CACHE_BLOCK || head->piece > UINT32_MAX ||
		(head->piece & (head->piece - 1)) != 0 ||
		cache_pieces(head->size, head->piece) > UINT32_MAX)
		return false;
	while (text_bytes > 0 && head->text[text_bytes - 1] == 0)
		text_bytes--;
	for (size_t i = 0; i < text_bytes; i++)
		zeros += head->text[i] == 0;
	hash_head(head, text_bytes, &own);
	return zeros == 2 && text_bytes < sizeof(head->text) &&
	       memcmp(own.byte, hash->byte, sizeof(own.byte)) == 0;
}

void cache_name(const struct cache_hash *hash, const char *ending, char name[CACHE_NAME_BYTES])
{
	int n = snprintf(name, CACHE_NAME_BYTES, "%02x/", hash->byte[0]);

	for (int i = 0; i < CACHE_HASH_BYTES; i++)
		n += snprintf(name + n, CACHE_NAME_BYTES - (size_t)n, "%02x", hash->byte[i]);
	snprintf(name + n, CACHE_NAME_BYTES - (size_t)n, "%s", ending);
}

bool cache_name_parse(const char *name, const char *ending, struct cache_hash *hash)
{
	if (strspn(name, "0123456789abcdef") != 2 * CACHE_HASH_BYTES ||
		strcmp(name + 2 * (size_t)CACHE_HASH_BYTES, ending) != 0)
		return false;
	for (int i = 0; i < CACHE_HASH_BYTES; i++) {
		char two[3] = {name[2 * i], name[2 * i + 1], 0};

		hash->byte[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return true;
}

/* ---- files ---- */

/* Like pread(), but all of it. 0 or an errno; EBADMSG: the file is shorter. */
static int read_all(int fd, void *to, size_t n, uint64_t at)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = pread(fd, (char *)to + done, n - done, (off_t)(at + done));

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? errno : EBADMSG;
		done += (size_t)got;
	}
	return 0;
}

static int write_all(int fd, const void *from, size_t n, uint64_t at)
{
	for (size_t done = 0; done < n;) {
		ssize_t put = pwrite(fd, (const char *)from + done, n - done, (off_t)(at + done));

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put < 0 ? errno : EIO;
		done += (size_t)put;
	}
	return 0;
}

static int open_sums(int dir, const struct cache_hash *hash, int flags)
{
	char name[CACHE_NAME_BYTES];

	cache_name(hash, ".sums", name);
	return openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int cache_files_create(int dir, const struct cache_hash *hash, const struct cache_head *head)
{
	uint64_t pieces = cache_pieces(head->size, head->piece);
	char name[CACHE_NAME_BYTES], sub[3];
	int data, sums, error = 0;

	cache_name(hash, ".data", name);
	memcpy(sub, name, 2);
	sub[2] = 0;
	if (mkdirat(dir, sub, 0700) != 0 && errno != EEXIST)
		return -errno;
	/* The sums go first: without them old data mean nothing. */
	sums = open_sums(dir, hash, O_RDWR | O_CREAT | O_TRUNC);
	if (sums < 0)
		return -errno;
	data = openat(dir, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (data < 0 || ftruncate(data, (off_t)head->size) != 0 ||
		ftruncate(sums, (off_t)cache_sums_bytes(pieces)) != 0)
		error = errno;
	if (!error) {
		struct cache_head whole = *head;

		whole.sum = head_sum(head);
		error = write_all(sums, &whole, sizeof(whole), 0);
	}
	close(sums);
	if (!error)
		return data;
	if (data >= 0)
		close(data);
	cache_files_remove(dir, hash);
	return -error;
}

void cache_files_remove(int dir, const struct cache_hash *hash)
{
	char name[CACHE_NAME_BYTES];

	cache_name(hash, ".sums", name);
	unlinkat(dir, name, 0);
	cache_name(hash, ".data", name);
	unlinkat(dir, name, 0);
}

int cache_head_read(int dir, const struct cache_hash *hash, struct cache_head *head)
{
	int fd = open_sums(dir, hash, O_RDONLY), error;

	if (fd < 0)
		return errno;
	error = read_all(fd, head, sizeof(*head), 0);
	close(fd);
	return !error && !cache_head_valid(head, hash) ? EBADMSG : error;
}

int cache_sum_read(int dir, const struct cache_hash *hash, uint64_t piece, uint64_t *sum)
{
	int fd = open_sums(dir, hash, O_RDONLY), error;

	if (fd < 0)
		return errno;
	error = read_all(fd, sum, sizeof(*sum), cache_sums_bytes(piece));
	close(fd);
	return error;
}

int cache_sum_write(int dir, const struct cache_hash *hash, uint64_t piece, uint64_t sum)
{
	int fd = open_sums(dir, hash, O_WRONLY), error;

	if (fd < 0)
		return errno;
	error = write_all(fd, &sum, sizeof(sum), cache_sums_bytes(piece));
	close(fd);
	return error;
}

int cache_punch(int fd, uint64_t at, uint64_t n)
{
	/* Up to the end of the block: the last piece may end inside of one. */
	n = cache_blocks(at + n) - at;
	while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) != 0)
		if (errno != EINTR)
			return errno;
	return 0;
}

int cache_sum_of(int fd, uint64_t at, uint64_t n, uint64_t *sum)
{
	enum { CHUNK = 256 << 10 };
	XXH64_state_t state;
	char *chunk = malloc(CHUNK);
	int error = chunk ? 0 : ENOMEM;

	XXH64_reset(&state, 0);
	for (uint64_t done = 0; done < n && !error;) {
		size_t part = n - done < CHUNK ? (size_t)(n - done) : CHUNK;

		error = read_all(fd, chunk, part, at + done);
		if (!error)
			XXH64_update(&state, chunk, part);
		done += part;
	}
	free(chunk);
	*sum = XXH64_digest(&state);
	if (*sum == 0)
		*sum = 1;
	return error;
}
