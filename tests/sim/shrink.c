/* Makes a failing history smaller. */
#include "tests/sim/sim.h"

#include "tests/sim/job.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

int __real_open(const char *path, int flags, ...);

void print_command(const struct options *o)
{
	bool first = true;

	printf("sim --seed %" PRIu64 " --events %" PRIu64, o->seed, o->events);
	if (o->engine)
		printf(" --engine %" PRIu64, o->engine);
	if (o->days)
		printf(" --days %" PRIu64, o->days);
	else if (o->month)
		printf(" --month");
	for (unsigned i = 0; director_classes[i]; i++)
		if (o->without >> i & 1) {
			printf("%s%s", first ? " --without " : ",", director_classes[i]);
			first = false;
		}
	putchar('\n');
	fflush(stdout);
}

static bool try(struct options *o, struct options smaller, bool (*fails)(const struct options *o))
{
	if (!fails(&smaller))
		return false;
	*o = smaller;
	return true;
}

/* Halves the number of events as long as it fails, then tries a little less. */
static void fewer_events(struct options *o, bool (*fails)(const struct options *o))
{
	for (uint64_t step = o->events / 2; step > 0; step /= 2) {
		struct options smaller = *o;

		while (smaller.events > step) {
			smaller.events -= step;
			if (!try(o, smaller, fails))
				break;
		}
	}
}

void shrink(struct options *o, bool (*fails)(const struct options *o))
{
	int out = dup(STDERR_FILENO), null = __real_open("/dev/null", O_WRONLY);
	struct options smaller = *o;

	printf("shrinking …\n");
	fflush(stdout);
	dup2(null, STDERR_FILENO);
	smaller.engine = 0;
	if (o->engine)
		try(o, smaller, fails);
	for (unsigned i = 0; director_classes[i]; i++) {
		smaller = *o;
		smaller.without |= UINT32_C(1) << i;
		try(o, smaller, fails);
	}
	fewer_events(o, fails);
	dup2(out, STDERR_FILENO);
	fails(o); /* once more, to show what is wrong */
}
