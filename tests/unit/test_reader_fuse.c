/*
 * A file system that hangs, fails and forgets: a FUSE server with one file, written without a
 * library, because it needs only a dozen messages. It plays an NFS server. Skipped if the process
 * may not mount.
 */
#include "tests/unit/injected.h"
#include "tests/unit/shelf.h"

#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>

enum {
	FILE_NODE = 2,
	FILE_TOKENS = 50000,
	HELD_MOST = 16,
	HOLD_MS = 20000, /* then the server answers anyway, so that a failed test leaves no
			    unkillable processes */
};

/* Orders of the test to the server, and counts of the server. */
struct orders {
	_Atomic unsigned holds; /* this opcode gets no answer for now; 0: none */
	_Atomic unsigned held;
	_Atomic int read_error;	    /* for every READ */
	_Atomic uint64_t forgotten; /* handles up to this give ESTALE */
	_Atomic uint32_t read_most; /* of one answer */
	_Atomic uint64_t newer_ns;  /* added to the listed mtime */
	_Atomic uint64_t ctime_s;
	_Atomic unsigned flips; /* inverts these bits of every byte that is read */
	_Atomic uint64_t looks; /* GETATTR of the file */
	_Atomic uint64_t opens; /* so far; a handle is the number of its open */
	_Atomic uint64_t reads;
};

static struct mounted {
	struct shelf *shelf;   /* its only shard is the served file */
	struct orders *orders; /* shared memory */
	pid_t process;
} mounted;

/* ---- the server ---- */

struct server {
	struct orders *orders;
	const struct dataset_identity *listed;
	int fd;
	char *bytes; /* the whole file */
	uint64_t size;
	int64_t held_since_ms;
	char held[HELD_MOST][512];
};

static void answer(const struct server *s, const struct fuse_in_header *in, int error,
	const void *body, size_t n)
{
	struct fuse_out_header out = {
		.len = (uint32_t)(sizeof(out) + n), .error = -error, .unique = in->unique};
	struct iovec parts[] = {{&out, sizeof(out)}, {(void *)(uintptr_t)body, n}};

	/* ENOENT: the client was interrupted and no longer waits. */
	if (writev(s->fd, parts, 2) < 0 && errno != ENOENT) {
		fprintf(stderr, "fuse: answering opcode %u: %s\n", in->opcode, strerror(errno));
		_exit(1);
	}
}

static struct fuse_attr attr_of(const struct server *s, uint64_t node)
{
	uint64_t mtime_ns = s->listed->mtime_ns + s->orders->newer_ns;
	bool is_file = node == FILE_NODE;

	return (struct fuse_attr){
		.ino = node,
		.size = is_file ? s->size : 0,
		.mode = is_file ? S_IFREG | 0444 : S_IFDIR | 0555,
		.nlink = 1,
		.mtime = mtime_ns / 1000000000,
		.mtimensec = (uint32_t)(mtime_ns % 1000000000),
		.ctime = s->orders->ctime_s,
	};
}

static void serve_read(
	const struct server *s, const struct fuse_in_header *in, const struct fuse_read_in *read)
{
	uint64_t left = read->offset < s->size ? s->size - read->offset : 0;
	uint64_t n = read->size < left ? read->size : left;

	char bytes[LARGEST_BYTES];

	n = n < sizeof(bytes) ? n : sizeof(bytes);
	for (uint64_t i = 0; i < n; i++)
		bytes[i] = (char)(s->bytes[read->offset + i] ^ (char)s->orders->flips);
	s->orders->reads++;
	if (s->orders->read_error)
		answer(s, in, s->orders->read_error, NULL, 0);
	else if (read->fh <= s->orders->forgotten)
		answer(s, in, ESTALE, NULL, 0);
	else
		answer(s, in, 0, bytes, n < s->orders->read_most ? n : s->orders->read_most);
}

static void serve(const struct server *s, const struct fuse_in_header *in)
{
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
		.minor = FUSE_KERNEL_MINOR_VERSION,
		.max_write = 4096};
	struct fuse_open_out opened = {.open_flags = FOPEN_DIRECT_IO};
	struct fuse_attr_out attr = {.attr = attr_of(s, in->nodeid)};
	struct fuse_entry_out entry = {.nodeid = FILE_NODE, .attr = attr_of(s, FILE_NODE)};

	switch (in->opcode) {
	case FUSE_INIT:
		answer(s, in, 0, &init, sizeof(init));
		return;
	case FUSE_LOOKUP:
		answer(s, in, 0, &entry, sizeof(entry));
		return;
	case FUSE_GETATTR:
		s->orders->looks += in->nodeid == FILE_NODE;
		answer(s, in, 0, &attr, sizeof(attr));
		return;
	case FUSE_OPEN:
		opened.fh = ++s->orders->opens;
		answer(s, in, 0, &opened, sizeof(opened));
		return;
	case FUSE_READ:
		serve_read(s, in, (const struct fuse_read_in *)(in + 1));
		return;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		answer(s, in, 0, NULL, 0);
		return;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		answer(s, in, ENOSYS, NULL, 0);
	}
}

static void let_go(struct server *s)
{
	if (s->orders->held == 0 || (s->orders->holds && now_ms() - s->held_since_ms < HOLD_MS))
		return;
	for (unsigned i = 0; i < s->orders->held; i++)
		serve(s, (const struct fuse_in_header *)s->held[i]);
	s->orders->held = 0;
}

static void take(struct server *s, const char *request)
{
	const struct fuse_in_header *in = (const struct fuse_in_header *)request;

	if (in->opcode != s->orders->holds || s->orders->held == HELD_MOST) {
		serve(s, in);
		return;
	}
	memcpy(s->held[s->orders->held], request, sizeof(s->held[0]));
	s->held_since_ms = now_ms();
	s->orders->held++;
}

/* Runs until it is killed, or the mount ends. */
static void server_run(struct server *s)
{
	static char request[FUSE_MIN_READ_BUFFER + 8192];
	struct pollfd poll_fd = {.fd = s->fd, .events = POLLIN};

	for (;;) {
		let_go(s);
		if (poll(&poll_fd, 1, 5) <= 0)
			continue;
		ssize_t n = read(s->fd, request, sizeof(request));

		if (n < 0 && errno == ENODEV)
			_exit(0);
		if (n >= (ssize_t)sizeof(struct fuse_in_header))
			take(s, request);
	}
}

/* ---- the test's side ---- */

static void server_begin(int fd, struct shelf *shelf, struct orders *orders)
{
	struct server s = {.orders = orders, .listed = &shelf->identity[0], .fd = fd};

	s.size = DATA_AT + FILE_TOKENS * 2;
	s.bytes = calloc(1, s.size);
	if (!s.bytes)
		_exit(1);
	memcpy(s.bytes + DATA_AT, shelf->bytes[0], FILE_TOKENS * 2);
	server_run(&s);
}

static void mount_over(struct shelf *shelf, int fd)
{
	char options[80];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	if (mount("tokend-test", shelf->root, "fuse.tokend-test", MS_NOSUID | MS_NODEV, options) <
		0) {
		close(fd);
		shelf_free(shelf);
		skip_because("no FUSE mount here");
	}
}

/* A shelf whose shard is the server's file. */
static struct shelf *mounted_new(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		skip_because("no /dev/fuse here");
	struct shelf *shelf = shelf_new(1, FILE_TOKENS);

	mount_over(shelf, fd);
	shelf->identity[0].inode = FILE_NODE;
	mounted.shelf = shelf;
	mounted.orders = mmap(NULL, sizeof(*mounted.orders), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(mounted.orders, MAP_FAILED);
	mounted.orders->read_most = UINT32_MAX;
	mounted.process = fork();
	assert_true(mounted.process >= 0);
	if (mounted.process == 0)
		server_begin(fd, shelf, mounted.orders);
	close(fd);
	return shelf;
}

static int mounted_free(void **state)
{
	(void)state;
	if (!mounted.shelf)
		return 0;
	kill(mounted.process, SIGKILL);
	waitpid(mounted.process, NULL, 0);
	umount2(mounted.shelf->root, MNT_DETACH);
	munmap(mounted.orders, sizeof(*mounted.orders));
	shelf_free(mounted.shelf);
	mounted.shelf = NULL;
	return 0;
}

static void wait_held(unsigned count)
{
	int64_t begin = now_ms();

	while (mounted.orders->held != count) {
		assert_true(now_ms() - begin < 10000);
		usleep(1000);
	}
}

static void hold(unsigned opcode)
{
	mounted.orders->holds = opcode;
}

static void hold_no_more(void)
{
	hold(0);
	wait_held(0);
}

/* ---- tests ---- */

static void reads_are_right(void **state)
{
	struct shelf *shelf = mounted_new();
	struct checker checker;

	checker_open(&checker, *state, 4);
	read_random(&checker, shelf, 300, WINDOW_BYTES / 2);
	mounted.orders->read_most = 1024;
	mounted.orders->reads = 0;
	read_random(&checker, shelf, 100, WINDOW_BYTES / 2);
	assert_true(mounted.orders->reads > 400); /* the reads were short */
	injected(13, mounted.orders->reads - 100);
	assert_int_equal(mounted.orders->opens, 1);
	checker_close(&checker);
}

static void read_meanwhile(struct checker *checker, const struct shelf *shelf, unsigned reads)
{
	for (unsigned i = 0; i < reads; i++) {
		checker_queue(checker, shelf, 0, i % 4000, 1000);
		reader_commit(checker->reader);
		reap_right(checker, shelf);
	}
}

static void assert_wait_ends(struct checker *checker)
{
	struct reader_done done;
	int64_t begin = now_ms();

	assert_int_equal(checker->in_flight, 1);
	assert_int_equal(checker_reap(checker, &done, 1, 50), 0);
	assert_in_range(now_ms() - begin, 49, 5000);
}

/* While a request hangs, other reads finish and a wait ends in time. Afterwards the late reads
 * finish, too. */
static void check_hang(struct checker *checker, const struct shelf *fuse, const struct shelf *local,
	unsigned opcode)
{
	hold(opcode);
	checker_queue(checker, fuse, 0, 7, 1000);
	reader_commit(checker->reader);
	assert_wait_ends(checker); /* it may be read already and wait for its look */
	wait_held(1);
	read_meanwhile(checker, local, 2000);
	assert_wait_ends(checker);
	hold_no_more();
	reap_right(checker, fuse);
	assert_int_equal(checker->in_flight, 0);
}

static void a_hang_does_not_block_other_reads(void **state)
{
	struct shelf *fuse = mounted_new(), *local = shelf_new(1, 5000);
	struct checker checker;

	checker_open(&checker, *state, 3);
	check_hang(&checker, fuse, local, FUSE_OPEN);
	check_hang(&checker, fuse, local, FUSE_READ);
	check_hang(&checker, fuse, local, FUSE_GETATTR);
	checker_close(&checker);
	shelf_free(local);
}

/* With two entries, opening a third shard closes the FUSE file, which hangs. Reads of the other
 * local shard continue. */
static void a_hanging_close_does_not_block_other_reads(void **state)
{
	struct shelf *fuse = mounted_new(), *local = shelf_new(2, 5000);
	struct checker checker;

	checker_open(&checker, *state, 2);
	assert_reads(&checker, fuse, 0);
	assert_reads(&checker, local, 0);
	hold(FUSE_FLUSH);
	checker_queue(&checker, local, 1, 0, 1000);
	reader_commit(checker.reader);
	wait_held(1);
	read_meanwhile(&checker, local, 100);
	assert_wait_ends(&checker);
	hold_no_more();
	reap_right(&checker, local);
	checker_close(&checker);
	shelf_free(local);
}

static void eio_is_reported_and_passes(void **state)
{
	struct shelf *shelf = mounted_new();
	struct checker checker;

	checker_open(&checker, *state, 4);
	mounted.orders->read_error = EIO;
	assert_errno(&checker, shelf, 0, EIO);
	assert_errno(&checker, shelf, 0, EIO);
	injected(9, 2);
	mounted.orders->read_error = 0;
	assert_reads(&checker, shelf, 0);
	checker_close(&checker);
}

/* The handle stays stale, but the path still leads to the file. */
static void a_stale_handle_is_opened_again(void **state)
{
	struct shelf *shelf = mounted_new();
	struct orders *orders = mounted.orders;
	struct checker checker;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	orders->forgotten = orders->opens;
	read_random(&checker, shelf, 200, WINDOW_BYTES / 2);
	assert_int_equal(orders->opens, 2);
	orders->forgotten = UINT64_MAX;
	assert_errno(&checker, shelf, 0, ESTALE);
	orders->forgotten = 0;
	assert_reads(&checker, shelf, 0);
	orders->newer_ns = 1;
	orders->forgotten = orders->opens;
	assert_changed(&checker, shelf, 0, "mtime (ns) was ");
	checker_close(&checker);
}

/* Every read is followed by a look, in the pool, which several reads share; its outcome counts for
 * all of them. */
static void every_read_is_followed_by_a_look(void **state)
{
	struct shelf *shelf = mounted_new();
	struct orders *orders = mounted.orders;
	struct checker checker;
	char text[LIMIT_TEXT_BYTES];

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	orders->looks = 0;
	assert_reads(&checker, shelf, 0);
	assert_true(orders->looks > 0);
	assert_false(reader_warning(checker.reader, text, sizeof(text)));
	orders->ctime_s = 5;
	assert_reads(&checker, shelf, 0);
	assert_true(reader_warning(checker.reader, text, sizeof(text)));
	assert_non_null(strstr(text, "its ctime changed"));
	assert_false(reader_warning(checker.reader, text, sizeof(text)));
	read_random(&checker, shelf, 200, WINDOW_BYTES / 2);
	orders->flips = 1; /* without a change of the times it cannot be detected */
	orders->ctime_s = 6;
	assert_changed(&checker, shelf, 0, "it was overwritten at byte ");
	injected(12, 1);
	orders->flips = 0;
	assert_reads(&checker, shelf, 0);
	orders->newer_ns = 1;
	assert_changed(&checker, shelf, 0, "mtime (ns) was ");
	assert_int_equal(orders->opens, 1);
	checker_close(&checker);
}

static void a_look_that_hangs_is_shared(void **state)
{
	struct shelf *shelf = mounted_new();
	struct checker checker;
	struct reader_done done;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	hold(FUSE_GETATTR);
	checker_queue(&checker, shelf, 0, 0, 1000);
	reader_commit(checker.reader);
	assert_wait_ends(&checker);
	wait_held(1);
	for (unsigned i = 0; i < 20; i++)
		checker_queue(&checker, shelf, 0, i, 1000);
	reader_commit(checker.reader);
	assert_int_equal(checker_reap(&checker, &done, 1, 200), 0);
	assert_int_equal(mounted.orders->held, 1);
	mounted.orders->newer_ns = 1;
	hold_no_more();
	for (unsigned i = 0; i < 21; i++) {
		assert_int_equal(checker_reap(&checker, &done, 1, 10000), 1);
		assert_fault(&done, FAULT_CHANGED, 0);
	}
	checker_close(&checker);
}

/* After the server dies, every read ends with an error, and the reader can be closed. */
static void a_dead_server_is_an_error(void **state)
{
	struct shelf *shelf = mounted_new();
	struct checker checker;
	struct reader_done done;

	checker_open(&checker, *state, 4);
	assert_reads(&checker, shelf, 0);
	hold(FUSE_READ);
	checker_queue(&checker, shelf, 0, 0, 1000);
	reader_commit(checker.reader);
	wait_held(1);
	kill(mounted.process, SIGKILL);
	assert_int_equal(checker_reap(&checker, &done, 1, 10000), 1);
	assert_fault(&done, FAULT_IO, ECONNABORTED);
	checker_close(&checker);
}

static const struct test_case cases[] = {
	{"reads_are_right", reads_are_right, mounted_free},
	{"a_hang_does_not_block_other_reads", a_hang_does_not_block_other_reads, mounted_free},
	{"a_hanging_close_does_not_block_other_reads", a_hanging_close_does_not_block_other_reads,
		mounted_free},
	{"eio_is_reported_and_passes", eio_is_reported_and_passes, mounted_free},
	{"a_stale_handle_is_opened_again", a_stale_handle_is_opened_again, mounted_free},
	{"every_read_is_followed_by_a_look", every_read_is_followed_by_a_look, mounted_free},
	{"a_look_that_hangs_is_shared", a_look_that_hangs_is_shared, mounted_free},
	{"a_dead_server_is_an_error", a_dead_server_is_an_error, mounted_free},
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
