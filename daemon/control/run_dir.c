#include "daemon/control/run_dir.h"

#include "daemon/control/durable.h"
#include "daemon/control/log.h"
#include "proto/order.h"
#include "proto/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	LOCK_PATIENCE_MS =
		3000, /* a save takes milliseconds: a process with a lock for so long hangs */
	LOCK_PAUSE_MS = 5,
};

/* ---- names ---- */

bool run_dir_path(const struct run_place *place, char path[PATH_MAX], struct fault *fault)
{
	int n = snprintf(path, PATH_MAX, "%s/%s/%s", place->state_dir, place->stream, place->run);

	return (n > 0 && n < PATH_MAX) ||
	       fault_set(fault, FAULT_STATE_DIR, "state_dir", "state_dir: the path is too long");
}

/* A call on the run's directory or a file in it failed with errno. */
static bool failed(const struct run_dir *dir, int error, struct fault *fault)
{
	return fault_errno(fault, error, "state_dir", "%s: %s", dir->path, strerror(error));
}

/* Includes the names of earlier versions, .TAG.new and .TAG.link. No tag begins with a dot. */
static bool is_temporary(const char *name)
{
	size_t n = strlen(name);

	return name[0] == '.' && ((n > 5 && strcmp(name + n - 4, ".new") == 0) ||
					 (n > 6 && strcmp(name + n - 5, ".link") == 0));
}

/* ---- locks ---- */

/*
 * STATE_DIR/.lock. Every daemon has a read lock on its first byte for life. Each run has another
 * byte, by hash; two runs with the same byte take turns.
 */
struct run_locks {
	int fd;		    /* -1: not open */
	bool durable;	    /* this daemon has synced state_dir and its parents */
	bool no_locks_told; /* logged: the file system has no locks */
	pid_t neighbour;    /* the other daemon that was logged last, or 0 */
};

struct run_locks *run_locks_new(void)
{
	struct run_locks *locks = calloc(1, sizeof(*locks));

	if (locks)
		locks->fd = -1;
	return locks;
}

void run_locks_free(struct run_locks *locks)
{
	if (locks && locks->fd >= 0)
		close(locks->fd);
	free(locks);
}

static bool set_lock(const struct run_locks *locks, short type, off_t byte)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	return fcntl(locks->fd, F_SETLK, &lock) == 0;
}

/* The process that has @byte locked; 0: none; -1: one in another PID namespace or on another host.
 */
static pid_t holder(const struct run_locks *locks, off_t byte)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (fcntl(locks->fd, F_GETLK, &lock) < 0 || lock.l_type == F_UNLCK)
		return 0;
	return lock.l_pid > 0 ? lock.l_pid : -1;
}

static off_t byte_of(const struct run_place *place)
{
	uint64_t a = order_checksum(place->stream, strlen(place->stream));
	uint64_t b = order_checksum(place->run, strlen(place->run));

	return 1 + (off_t)(order_mix64(a ^ order_mix64(b)) >> 2);
}

/* Some file systems have no locks: NFS without lockd, Lustre without flock. */
static bool lacks_locks(int error)
{
	return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP;
}

/* Logs it once. */
static void tell_no_locks(const struct run_place *place)
{
	if (!place->locks->no_locks_told)
		log_line(LOG_WARNING,
			"state_dir: %s/.lock: %s: saves continue without locks, and left-over "
			"temporary files stay; make sure that no other daemon uses this state_dir",
			place->state_dir, strerror(errno));
	place->locks->no_locks_told = true;
}

/*
 * Any process that can open the file can lock it and block every save, so only the daemon's user
 * may open it. A daemon that runs as root gives a new file to the owner of state_dir: otherwise one
 * run as root would lock the service out. The mode of an old file is changed only if it is
 * certainly ours, and not a link to another file.
 */
static int open_lock_file(const struct run_place *place, const char *path)
{
	int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW,
	    fd = open(path, flags | O_CREAT | O_EXCL, 0600);
	struct stat it;

	if (fd >= 0) {
		if (geteuid() == 0 && stat(place->state_dir, &it) == 0 && it.st_uid != 0 &&
			fchown(fd, it.st_uid, it.st_gid) < 0)
			log_line(LOG_WARNING, "state_dir: %s: cannot chown to uid %u: %s; chown it",
				path, (unsigned)it.st_uid, strerror(errno));
		return fd;
	}
	if (errno != EEXIST)
		return -1;
	fd = open(path, flags | O_CREAT, 0600);
	if (fd >= 0 && fstat(fd, &it) == 0 && S_ISREG(it.st_mode) && it.st_uid == geteuid() &&
		it.st_nlink == 1 && it.st_size == 0 && (it.st_mode & 077))
		fchmod(fd, 0600);
	return fd;
}

static bool lock_file_failed(const struct run_place *place, struct fault *fault)
{
	int error = errno;

	if (place->locks->fd >= 0)
		return fault_errno(fault, error, "state_dir", "%s/.lock: %s", place->state_dir,
			strerror(error));
	return fault_errno(fault, error, "state_dir",
		"%s/.lock: %s; chown it to uid %u, or remove it (a daemon of another user may have "
		"made it)",
		place->state_dir, strerror(error), (unsigned)geteuid());
}

/* Opens the lock file, or opens it again if it was replaced. */
static bool open_locks(const struct run_place *place, struct fault *fault)
{
	struct run_locks *locks = place->locks;
	char path[PATH_MAX + 16];
	struct stat ours, there;

	snprintf(path, sizeof(path), "%s/.lock", place->state_dir);
	if (locks->fd >= 0 && fstat(locks->fd, &ours) == 0 && stat(path, &there) == 0 &&
		ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
		return true;
	if (locks->fd >= 0)
		close(locks->fd);
	locks->fd = open_lock_file(place, path);
	if (locks->fd >= 0 && set_lock(locks, F_RDLCK, 0))
		return true;
	if (locks->fd < 0 || !lacks_locks(errno))
		return lock_file_failed(place, fault);
	tell_no_locks(place);
	return true;
}

static const char *name_process(pid_t pid, char *text, size_t bytes)
{
	if (pid > 0)
		snprintf(text, bytes, "pid %d", (int)pid);
	else
		snprintf(text, bytes, "in another container or on another host"); /* or both */
	return text;
}

/* Logs it once. */
static void tell_neighbour(const struct run_place *place)
{
	pid_t other = holder(place->locks, 0);
	char who[64];

	if (other == 0 || other == place->locks->neighbour)
		return;
	place->locks->neighbour = other;
	log_line(LOG_WARNING,
		"state_dir: another tokend (%s) uses %s: saves take turns; give daemons that serve "
		"other jobs another state_dir",
		name_process(other, who, sizeof(who)), place->state_dir);
}

void run_dir_greet(const struct run_place *place)
{
	struct fault fault;

	if (open_locks(place, &fault))
		tell_neighbour(place);
}

static bool held_too_long(const struct run_dir *dir, pid_t other, struct fault *fault)
{
	char who[64];

	if (other == 0)
		return failed(dir, ETIMEDOUT, fault);
	return fault_errno(fault, ETIMEDOUT, "state_dir",
		"%s: locked by another tokend (%s) for %d s; stop that one, or try again",
		dir->path, name_process(other, who, sizeof(who)), LOCK_PATIENCE_MS / 1000);
}

/* Waits for the lock. Returns true without it on a file system that has no locks. */
static bool take_lock(struct run_dir *dir, const struct run_place *place, struct fault *fault)
{
	const struct timespec pause = {0, LOCK_PAUSE_MS * 1000000L};
	off_t byte = byte_of(place);

	for (unsigned waited = 0; !set_lock(place->locks, F_WRLCK, byte); waited += LOCK_PAUSE_MS) {
		if (lacks_locks(errno)) {
			tell_no_locks(place);
			return true;
		}
		if (errno != EAGAIN && errno != EACCES)
			return failed(dir, errno, fault);
		if (waited >= LOCK_PATIENCE_MS)
			return held_too_long(dir, holder(place->locks, byte), fault);
		nanosleep(&pause, NULL);
	}
	dir->locks = place->locks;
	dir->lock = byte;
	return true;
}

/* ---- owners ---- */

/* FAULT_DATA: .owner is damaged. */
static bool read_owner(int at, const char *path, uid_t *owner, struct fault *fault)
{
	char text[32];
	ssize_t n = durable_read_file(at, ".owner", text, sizeof(text) - 1, fault);
	uint64_t uid;

	*owner = RUN_NOBODY;
	if (n < 0)
		return fault->error == ENOENT;
	text[n] = 0;
	if (n > 0 && text[n - 1] == '\n')
		text[n - 1] = 0;
	if (!wire_digits(text, &uid) || uid == 0 || uid >= UINT32_MAX)
		return fault_set(fault, FAULT_DATA, "state_dir",
			"%s/.owner: not a uid; write the owner's uid there, or remove the file",
			path);
	*owner = (uid_t)uid;
	return true;
}

bool run_dir_owner(const char *path, uid_t *owner, struct fault *fault)
{
	int at = open(path, RUN_DIR_FLAGS);

	*owner = RUN_NOBODY;
	if (at < 0)
		return fault_errno(fault, errno, "state_dir", "%s: %s", path, strerror(errno));

	bool known = read_owner(at, path, owner, fault);

	close(at);
	return known;
}

/* The file appears whole. We have the lock, so nobody else writes it. */
static bool write_owner(const struct run_dir *dir, uid_t uid, struct fault *fault)
{
	char temporary[DURABLE_NAME_BYTES], text[32];
	int n = snprintf(text, sizeof(text), "%u\n", (unsigned)uid);

	if (!durable_temporary(temporary, fault))
		return failed(dir, fault->error, fault);

	bool done = durable_write_file(dir->at, temporary, text, (size_t)n, fault) ||
		    failed(dir, fault->error, fault);

	done = done &&
	       (renameat(dir->at, temporary, dir->at, ".owner") == 0 || failed(dir, errno, fault));
	if (!done)
		unlinkat(dir->at, temporary, 0);
	if (!done || fsync(dir->at) == 0)
		return done;
	failed(dir, errno, fault);
	unlinkat(dir->at, ".owner", 0); /* otherwise the next save would take it for durable */
	return false;
}

/* FAULT_PERMISSION: the run belongs to someone else. */
static bool check_owner(struct run_dir *dir, const struct run_place *place, struct fault *fault)
{
	bool known = read_owner(dir->at, dir->path, &dir->owner, fault);

	if (place->privileged) /* it may write, but never owns a run */
		return true;
	if (!known)
		return fault->code == FAULT_DATA ? false : failed(dir, fault->error, fault);
	if (dir->owner == RUN_NOBODY) {
		if (!write_owner(dir, place->uid, fault))
			return false;
		dir->owner = place->uid;
	}
	return dir->owner == place->uid ||
	       fault_set(fault, FAULT_PERMISSION, "run",
		       "run %s belongs to uid %u, not to uid %u; use another name for the run",
		       place->run, (unsigned)dir->owner, (unsigned)place->uid);
}

/* ---- left-over files ---- */

/* Removes the temporary files in directory @name of @at if @locked, otherwise counts them. Adds the
 * number of other files to *@others. */
static unsigned clean(int at, const char *name, bool locked, unsigned *others)
{
	int fd = openat(at, name, RUN_DIR_FLAGS);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	unsigned n = 0;
	struct dirent *e;

	if (!dir && fd >= 0)
		close(fd);
	while (dir && (e = readdir(dir))) {
		if (!is_temporary(e->d_name))
			*others += e->d_name[0] != '.';
		else if (!locked || unlinkat(fd, e->d_name, 0) == 0)
			n++;
	}
	if (dir)
		closedir(dir);
	return n;
}

static void clean_all(const struct run_dir *dir, const struct run_place *place)
{
	unsigned others = 0,
		 n = clean(dir->at, ".", true, &others) + clean(dir->at, "mixes", true, &others);

	if (n > 0)
		log_line(LOG_NOTE,
			"state_dir: removed %u temporary files of a killed tokend from %s/%s/%s", n,
			place->state_dir, place->stream, place->run);
}

unsigned run_dir_sweep(const struct run_place *place)
{
	struct run_dir dir = {.at = -1};
	struct fault fault;
	unsigned others = 0;

	if (!run_dir_path(place, dir.path, &fault))
		return 0;
	dir.at = open(dir.path, RUN_DIR_FLAGS);
	if (dir.at < 0)
		return 0;
	if (clean(dir.at, ".", false, &others) + clean(dir.at, "mixes", false, &others) > 0 &&
		open_locks(place, &fault) && set_lock(place->locks, F_WRLCK, byte_of(place))) {
		dir.locks = place->locks;
		dir.lock = byte_of(place);
		clean_all(&dir, place);
	}
	run_dir_close(&dir);
	return others;
}

/* ---- opening it ---- */

static bool open_at(struct run_dir *dir, const struct run_place *place, struct fault *fault)
{
	if (!run_dir_path(place, dir->path, fault))
		return false;
	size_t durable = !place->clean		 ? SIZE_MAX
			 : place->locks->durable ? strlen(place->state_dir)
						 : 0;

	if (!durable_make_directories(dir->path, durable, fault))
		return false; /* the text names the directory */
	place->locks->durable |= place->clean;
	dir->at = open(dir->path, RUN_DIR_FLAGS);
	return dir->at >= 0 || failed(dir, errno, fault);
}

bool run_dir_open(struct run_dir *dir, const struct run_place *place, struct fault *fault)
{
	dir->at = -1;
	dir->lock = 0;
	dir->owner = RUN_NOBODY;
	if (open_at(dir, place, fault) && open_locks(place, fault)) {
		tell_neighbour(place);
		if (take_lock(dir, place, fault) && check_owner(dir, place, fault)) {
			if (place->clean && dir->lock > 0)
				clean_all(dir, place);
			return true;
		}
	}
	run_dir_close(dir);
	return false;
}

void run_dir_close(struct run_dir *dir)
{
	if (dir->lock > 0)
		set_lock(dir->locks, F_UNLCK, dir->lock);
	if (dir->at >= 0)
		close(dir->at);
	dir->lock = 0;
	dir->at = -1;
}
