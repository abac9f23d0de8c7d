#include "tests/sim/sim.h"

void month(const struct options *o, struct result *result)
{
	history(o, result);
}
