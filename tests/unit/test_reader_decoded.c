/*
 * A reader with shards that are not plain: decoding, the memory of their indexes, and annotations
 * that need no file.
 */
#include "daemon/catalog/dataset_shard.h"
#include "tests/unit/shelf.h"

#include <stdatomic.h>

/* ---- tokens that are not contiguous ---- */

/*
 * A format of two pieces: the second half of the tokens is stored before the first.
 */
struct shard_index {
	uint64_t tokens, half;
};

static atomic_uint opened, held, held_most;

enum { LARGE_TOKENS = 4000 }; /* shards of so many tokens have a large index */

static bool swapped_describe(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	(void)hint, (void)fault;
	facts->type = SHARD_U16;
	facts->tokens = (b->size - DATA_AT) / 2;
	return true;
}

static struct shard_index *swapped_open(const struct bytes *b, const struct shard_hint *hint,
	struct shard_facts *facts, struct fault *fault)
{
	struct shard_index *index = malloc(sizeof(*index));

	(void)b, (void)hint, (void)fault;
	atomic_fetch_add(&opened, 1);
	unsigned now = atomic_fetch_add(&held, 1) + 1, most = atomic_load(&held_most);

	while (now > most && !atomic_compare_exchange_weak(&held_most, &most, now))
		;
	*index = (struct shard_index){facts->tokens, facts->tokens / 2};
	facts->index_bytes = facts->tokens == LARGE_TOKENS ? 16000 : 1000;
	return index;
}

static void swapped_close(struct shard_index *index)
{
	atomic_fetch_sub(&held, 1);
	free(index);
}

static uint64_t swapped_extent(
	const struct shard_index *index, uint64_t token, uint64_t *byte, struct fault *fault)
{
	uint64_t half = index->half, rest = index->tokens - half;

	(void)fault;
	*byte = DATA_AT + 2 * (token < half ? rest + token : token - half);
	return token < half ? half - token : index->tokens - token;
}

static const struct shard_format swapped = {
	.name = "swapped",
	.describe = swapped_describe,
	.open = swapped_open,
	.close = swapped_close,
	.extent = swapped_extent,
};

static struct shelf *shelf_of_swapped(unsigned shards, uint64_t tokens)
{
	struct shelf *shelf = shelf_new(shards, tokens);

	shelf->dataset.plain = false;
	shelf->dataset.format = &swapped;
	for (unsigned s = 0; s < shards; s++) {
		size_t n = 2 * shelf->tokens[s], half = 2 * (shelf->tokens[s] / 2);
		char *lie = malloc(n);

		assert_non_null(lie);
		memcpy(lie, shelf->bytes[s] + half, n - half);
		memcpy(lie + (n - half), shelf->bytes[s], half);
		write_file(shelf_path(shelf, s), lie, n);
		identify(shelf, s);
		free(lie);
	}
	return shelf;
}

/* ---- works of the backend ---- */

static struct {
	const struct io_ops *real;
	unsigned calls, reads;
	int error; /* of the next reads; 0: they end early, before the last half of their bytes */
	unsigned faults;
} works;

static struct io_ops counting_ops;

static void count_work(void *backend, struct io_work *work)
{
	works.calls += work->call != NULL;
	works.reads += !work->call;
	works.real->submit(backend, work);
}

static unsigned reap_with_faults(
	void *backend, struct io_work **done, unsigned max, int64_t deadline_ns, bool *kicked)
{
	unsigned n = works.real->reap(backend, done, max, deadline_ns, kicked);

	for (unsigned i = 0; i < n; i++) {
		if (done[i]->call || done[i]->result <= 0 || works.faults == 0)
			continue;
		works.faults--;
		done[i]->result = works.error ? -works.error : done[i]->result / 2;
	}
	return n;
}

static void checker_that_counts(struct checker *checker, const struct mode *mode)
{
	struct reader_options options = options_of(mode, 1);
	struct fault fault;

	skip_without_uring(mode);
	memset(&works, 0, sizeof(works));
	works.real = mode->io == CONFIG_IO_URING ? &uring_ops : &pread_ops;
	counting_ops = *works.real;
	counting_ops.submit = count_work;
	counting_ops.reap = reap_with_faults;
	checker_use(checker, reader_open_with(&counting_ops, &options, &fault));
}

static bool knows_nowait(const char *path)
{
	char byte;
	struct iovec to = {&byte, 1};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool knows = preadv2(fd, &to, 1, 0, RWF_NOWAIT) >= 0 || errno == EAGAIN;

	close(fd);
	return knows;
}

static void assert_window(struct checker *checker, const struct shelf *shelf, uint64_t token)
{
	struct reader_done done = read_once(checker, shelf, 0, token, 1000);

	assert_null(done.fault);
	assert_right_bytes(checker, shelf, done.tag);
}

static void only_contiguous_windows_are_read_by_the_backend(void **state)
{
	struct shelf *shelf = shelf_of_swapped(1, 6000);
	uint64_t half = shelf->tokens[0] / 2, end = shelf->tokens[0];
	struct checker checker;

	if (!knows_nowait(shelf_path(shelf, 0))) {
		shelf_free(shelf);
		skip_because("RWF_NOWAIT is not supported here");
	}
	checker_that_counts(&checker, *state);
	assert_window(&checker, shelf, half - 500);
	assert_int_equal(works.reads, 0);
	unsigned calls = works.calls;

	assert_window(&checker, shelf, 0);
	assert_window(&checker, shelf, half - 1000);
	assert_window(&checker, shelf, half);
	assert_window(&checker, shelf, end - 1000);
	assert_int_equal(works.reads, 4);
	assert_int_equal(works.calls, calls);
	checker_close(&checker);
	shelf_free(shelf);
}

/* A read that the backend does not finish is continued, or made again by the pool. */
static void faults_of_contiguous_reads_pass(void **state)
{
	static const int errors[] = {0, EINTR, EAGAIN, EIO};
	struct shelf *shelf = shelf_of_swapped(1, 6000);
	struct checker checker;

	checker_that_counts(&checker, *state);
	assert_window(&checker, shelf, 0);
	for (unsigned i = 0; i < COUNT(errors) && knows_nowait(shelf_path(shelf, 0)); i++) {
		works.error = errors[i];
		works.faults = 3;
		for (uint64_t token = 0; works.faults > 0; token++)
			assert_window(&checker, shelf, token);
	}
	checker_close(&checker);
	shelf_free(shelf);
}

static void a_truncated_shard_is_reported(void **state)
{
	struct shelf *shelf = shelf_of_swapped(1, 6000);
	struct checker checker;

	checker_that_counts(&checker, *state);
	assert_window(&checker, shelf, 0);
	assert_return_code(truncate(shelf_path(shelf, 0), DATA_AT + 3000), errno);
	/* The first half of the tokens is the second half of the file. */
	struct reader_done done = read_once(&checker, shelf, 0, 0, 1000);

	assert_fault(&done, FAULT_IO, EIO);
	assert_non_null(strstr(done.fault->text, "was truncated: it ends at byte "));
	done = read_once(&checker, shelf, 0, shelf->tokens[0] / 2, 1000);
	assert_fault(&done, FAULT_CHANGED, 0);
	assert_non_null(strstr(done.fault->text, "it was truncated: size was "));
	checker_close(&checker);
	shelf_free(shelf);
}

static void shards_that_are_not_plain_are_decoded(void **state)
{
	struct shelf *shelf = shelf_of_swapped(8, LARGEST_BYTES / 2 - 200);
	struct checker checker;

	for (unsigned round = 0; round < 4; round++) {
		for (unsigned s = 0; round % 2 == 0 && s < 8; s++)
			drop_from_cache(shelf_path(shelf, s));
		checker_open(&checker, *state, 6);
		read_random(&checker, shelf, 1000, WINDOW_BYTES / 2);
		for (unsigned s = 0; s < 8; s++)
			assert_reads(&checker, shelf, s);
		checker_close(&checker);
	}
	shelf_free(shelf);
}

/* Counts the indexes that are read for reads of shards 0, 1, …, 7, three times over. */
static unsigned indexes_made(const struct mode *mode, uint64_t indexes_bytes)
{
	struct shelf *shelf = shelf_of_swapped(8, 5000);
	struct reader_options options = options_of(mode, 16);
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct checker checker;

	skip_without_uring(mode);
	options.indexes_bytes = indexes_bytes;
	atomic_store(&opened, 0);
	checker_use(&checker, reader_open(&options, note, sizeof(note), &fault));
	atomic_store(&held_most, 0);
	for (unsigned i = 0; i < 24; i++)
		assert_reads(&checker, shelf, i % 8);
	/* One after another: there are never more than fit, even while the next is opened. */
	if (indexes_bytes > 0)
		assert_in_range(
			atomic_load(&held_most), 1, indexes_bytes / (1000 + sizeof(struct shard)));
	read_random(&checker, shelf, 500, WINDOW_BYTES / 2); /* many at once, too */
	checker_close(&checker);
	shelf_free(shelf);
	return atomic_load(&opened);
}

static void indexes_stay_within_their_memory(void **state)
{
	assert_int_equal(indexes_made(*state, 100000), 8);
	assert_true(indexes_made(*state, 5000) >= 24);
	assert_true(indexes_made(*state, 0) >= 24);
}

/* If all indexes fit, neither a large one nor many that are opened at once evict any. */
static void indexes_that_fit_are_kept(void **state)
{
	struct shelf *shelf = shelf_of_swapped(8, LARGE_TOKENS);
	const struct mode *mode = *state;
	struct reader_options options = options_of(mode, 16);
	char note[LIMIT_TEXT_BYTES];
	struct fault fault;
	struct checker checker;

	skip_without_uring(mode);
	atomic_store(&opened, 0);
	checker_use(&checker, reader_open(&options, note, sizeof(note), &fault));
	reader_index_memory(checker.reader, 64000); /* as for the first index after a reload */
	assert_reads(&checker, shelf, 0);
	for (unsigned s = 1; s < 8; s++)
		checker_queue(&checker, shelf, s, 0, 100);
	reader_commit(checker.reader);
	while (checker.in_flight > 0)
		reap_right(&checker, shelf);
	assert_reads(&checker, shelf, 0);
	assert_int_equal(atomic_load(&opened), 8);
	checker_close(&checker);
	shelf_free(shelf);
}

/* ---- annotations ---- */

/* Flat files without a header, and documents are requested. With a manifest, the dataset does not
 * know whether a shard has an index. */
static void flat_shelf(struct shelf *shelf, enum shard_type type)
{
	struct dataset *d = &shelf->dataset;

	for (uint64_t s = 0; s < d->table.shards; s++)
		shelf->tokens[s] = (2 * shelf->tokens[s] + DATA_AT) / shard_type_bytes(type);
	d->plain = type == SHARD_U16;
	d->data_at = 0;
	d->format = &shard_flat;
	d->hint = (struct shard_hint){.type = type, .documents = true};
	d->marked = d->has_eos = true;
	d->eos = 0;
}

static void read_documents(struct checker *checker, const struct shelf *shelf, uint64_t token)
{
	uint16_t tokens[64];
	uint32_t count = 0, start[64], found = 0;
	struct reader_done done;
	const struct reader_read read = {.dataset = &shelf->dataset,
		.token = token,
		.tokens = COUNT(tokens),
		.to = tokens,
		.annotations = {.count = &count, .start = start}};

	reader_queue(checker->reader, &read);
	reader_commit(checker->reader);
	assert_int_equal(reader_reap(checker->reader, &done, 1, 10000), 1);
	assert_null(done.fault);
	for (uint32_t i = 1; i < COUNT(tokens); i++)
		if (tokens[i - 1] == shelf->dataset.eos)
			assert_int_equal(start[found++], i);
	assert_int_equal(count, found);
}

/* Annotations by the tokens alone do not wait, even if other shards of the dataset may have an
 * index. */
static void annotations_of_tokens(const struct mode *mode, enum shard_type type)
{
	struct shelf *shelf = shelf_new(1, 3000);
	struct checker checker;

	checker_that_counts(&checker, mode);
	flat_shelf(shelf, type);
	for (uint64_t token = 0; token < 20; token++)
		read_documents(&checker, shelf, DATA_AT / 2 - token);
	if (knows_nowait(shelf_path(shelf, 0))) /* calls: opening the file, opening the shard, and
						   with O_DIRECT one sample */
		assert_in_range(works.calls, 2, 2 + mode->direct);
	checker_close(&checker);
	shelf_free(shelf);
}

static void annotations_of_tokens_need_no_pool(void **state)
{
	annotations_of_tokens(*state, SHARD_U16);
	annotations_of_tokens(*state, SHARD_U8); /* converted in memory */
}

static const struct test_case cases[] = {
	CASE(only_contiguous_windows_are_read_by_the_backend),
	CASE(faults_of_contiguous_reads_pass),
	CASE(a_truncated_shard_is_reported),
	CASE(shards_that_are_not_plain_are_decoded),
	CASE(indexes_stay_within_their_memory),
	CASE(indexes_that_fit_are_kept),
	CASE(annotations_of_tokens_need_no_pool),
};

int main(void)
{
	return run_cases(cases, COUNT(cases));
}
