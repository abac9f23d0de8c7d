#include "client/lib/link.h"

#include <stdatomic.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t process_number(void)
{
	static _Atomic uint64_t
		number; /* its last half is the PID, so a forked child makes its own */
	uint64_t now = atomic_load(&number), pid = (uint32_t)getpid(), chosen;

	if ((uint32_t)now == pid)
		return now;
	if (getrandom(&chosen, sizeof(chosen), GRND_NONBLOCK) != sizeof(chosen))
		return 0;
	chosen = chosen << 32 | pid;
	/* Otherwise another thread was first. */
	return atomic_compare_exchange_strong(&number, &now, chosen) ? chosen : now;
}
