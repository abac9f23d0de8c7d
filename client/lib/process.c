/* The number is in a page that fork() wipes, so a child makes its own. */
#include "client/lib/link.h"
#include "proto/ring.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>

static _Atomic(_Atomic uint64_t *) page;

static _Atomic uint64_t *find_page(void)
{
	_Atomic uint64_t *at = atomic_load(&page), *none = NULL;

	if (at)
		return at;
	at = mmap(NULL, RING_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	if (madvise((void *)at, RING_PAGE, MADV_WIPEONFORK) == 0 &&
		atomic_compare_exchange_strong(&page, &none, at))
		return at;
	munmap((void *)at, RING_PAGE);
	return none; /* another thread was first; NULL: madvise() failed */
}

uint64_t process_number(void)
{
	_Atomic uint64_t *at = find_page();
	uint64_t chosen = 0, none = 0;

	if (!at)
		return 0;
	if (atomic_load(at) == 0 &&
		getrandom(&chosen, sizeof(chosen), GRND_NONBLOCK) == sizeof(chosen))
		atomic_compare_exchange_strong(at, &none, chosen);
	return atomic_load(at);
}
