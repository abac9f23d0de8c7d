#include "client/ctl/online/private.h"

#include "client/ctl/common/clock.h"
#include "client/ctl/common/error.h"
#include "client/ctl/online/hear.h"
#include "proto/phrases.h"
#include "proto/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- its name ---- */

enum { CONFIG_MOST = 1 << 20 }; /* a larger one is refused, and may have no end */

/* The hash of the path and the text of @config. */
static bool hash_config(const char *config, uint64_t *hash)
{
	int fd = open(config, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	XXH3_state_t *state = XXH3_createState();
	char some[1 << 14];
	size_t n;
	bool ok = file && state;

	if (ok) {
		XXH3_64bits_reset(state);
		XXH3_64bits_update(state, config, strlen(config) + 1);
		for (size_t all = 0; all <= CONFIG_MOST && (n = fread(some, 1, sizeof(some), file));
			all += n)
			XXH3_64bits_update(state, some, n);
		ok = !ferror(file);
		*hash = XXH3_64bits_digest(state);
	}
	if (!ok)
		ctl_fail("config: %s: %s; pass a config file of tokend", config, strerror(errno));
	if (file)
		fclose(file);
	XXH3_freeState(state);
	return ok;
}

unsigned private_sockets(const char *config, char path[2][WIRE_SOCKET_BYTES])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char name[32];
	uint64_t hash;
	unsigned n = 0;

	if (!hash_config(config, &hash))
		return 0;
	snprintf(name, sizeof(name), "%016" PRIx64 ".sock", hash);
	if (runtime && place_own(runtime, getuid(), name, path[n]))
		n++;
	place_own(NULL, getuid(), name, path[n]);
	return n + 1;
}

bool private_socket(const char *config, char path[WIRE_SOCKET_BYTES])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char paths[2][WIRE_SOCKET_BYTES];
	unsigned n = private_sockets(config, paths);
	struct stat st;

	if (n == 0)
		return false;
	bool usable = n == 2 && stat(runtime, &st) == 0 && S_ISDIR(st.st_mode) &&
		      access(runtime, W_OK) == 0;

	memcpy(path, paths[usable ? 0 : n - 1], WIRE_SOCKET_BYTES);
	return true;
}

/* ---- its files ---- */

static bool directory_of(const char *path, char directory[WIRE_SOCKET_BYTES])
{
	const char *slash = strrchr(path, '/');

	if (path[0] != '/' || slash == path || slash - path >= WIRE_SOCKET_BYTES) {
		ctl_fail("--socket: %s is not an absolute path in a directory of at most 107 "
			 "bytes",
			path);
		return false;
	}
	memcpy(directory, path, (size_t)(slash - path));
	directory[slash - path] = 0;
	return true;
}

static bool is_own(const char *directory)
{
	struct stat st;

	return lstat(directory, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == getuid() &&
	       (st.st_mode & 077) == 0;
}

bool private_directory(const char *path)
{
	char directory[WIRE_SOCKET_BYTES];
	struct stat st;

	if (!directory_of(path, directory))
		return false;
	do {
		if (mkdir(directory, 0700) < 0 && errno != EEXIST) {
			ctl_fail("config: %s: %s; set XDG_RUNTIME_DIR to a directory of yours, for "
				 "the daemon's socket",
				directory, strerror(errno));
			return false;
		}
	} while (lstat(directory, &st) < 0 && errno == ENOENT); /* its last daemon removed it */
	if (is_own(directory))
		return true;
	ctl_fail("config: %s is not a directory of uid %u with mode 0700; remove it, or set "
		 "XDG_RUNTIME_DIR to a directory of yours",
		directory, (unsigned)getuid());
	return false;
}

int private_lock(const char *path)
{
	char lock[WIRE_SOCKET_BYTES + 8];
	struct stat ours, now;

	snprintf(lock, sizeof(lock), "%s.lock", path);
	for (;;) {
		if (!private_directory(path))
			return -2;
		int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

		if (fd < 0 && errno == ENOENT)
			continue; /* the last daemon has removed the directory */
		if (fd < 0) {
			ctl_fail("config: cannot create %s: %s", lock, strerror(errno));
			return -2;
		}
		if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			close(fd);
			return -1;
		}
		if (fstat(fd, &ours) == 0 && stat(lock, &now) == 0 && ours.st_ino == now.st_ino &&
			ours.st_dev == now.st_dev)
			return fd;
		close(fd); /* a daemon has removed the lock file that we opened */
	}
}

/* ---- asking it ---- */

/* The next message in @packet; false if none comes until @until, or @reader has nobody left. */
static bool next_message(int fd, struct packet *packet, uint64_t until, int reader)
{
	uint64_t now = ctl_clock_ms();
	int left = now < until ? (int)(until - now) : 0;

	return ctl_hear_packet(fd, packet, left, (struct pollfd){reader, 0, 0}) == CTL_MESSAGE;
}

/* Does a message of the daemon's status say that it serves @config? */
static bool names(const struct wire *w, const char *config)
{
	char served[PATH_MAX], *whole;

	if (!wire_text(w, WIRE_PATH, served, sizeof(served)))
		return false;
	whole = realpath(served, NULL);
	bool same = whole && strcmp(whole, config) == 0;

	free(whole);
	return same;
}

static enum private_answer ask(
	int fd, struct packet *packet, const char *config, uint64_t until, int reader)
{
	struct wire query = {.op = WIRE_STATUS};
	struct fault fault;

	if (!next_message(fd, packet, until, reader) || packet->wire.op != WIRE_HELLO)
		return PRIVATE_NONE;
	if (!config)
		return PRIVATE_SERVES;
	wire_set(&query, WIRE_SERIAL, 1);
	wire_set(&query, WIRE_AFTER, 0);
	if (!link_send(fd, &query, packet->bytes, &fault))
		return PRIVATE_NONE;
	if (!next_message(fd, packet, until, reader))
		return PRIVATE_NONE;
	return packet->wire.op == WIRE_STATUS && names(&packet->wire, config) ? PRIVATE_SERVES
									      : PRIVATE_OTHER;
}

enum private_answer private_ask(
	const char *path, const char *config, int ms, int reader, struct fault *fault)
{
	struct packet *packet = malloc(sizeof(*packet));
	enum private_answer answer = PRIVATE_NONE;

	if (!packet) {
		fault_memory(fault);
		return answer;
	}
	packet->fds = 0;
	int fd = link_open(path, LINK_OPERATOR, packet->bytes, fault);

	if (fd >= 0)
		answer = ask(fd, packet, config, ctl_clock_ms() + (uint64_t)ms, reader);
	else if (fault->code == FAULT_PERMISSION)
		answer = PRIVATE_UNTRUSTED;
	if (fd >= 0) {
		packet_close(packet);
		close(fd);
	}
	free(packet);
	return answer;
}
