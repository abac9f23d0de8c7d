/* One history of @events events of an engine alone. Returns its trace. A failure aborts. */
#include <stdint.h>

uint64_t engine_history(uint64_t seed, uint64_t events);
