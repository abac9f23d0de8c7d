/*
 * A second account of what a daemon grants: rings fit into `memory:`.
 */
#include "tests/sim/node.h"

#include "daemon/control/control.h"

struct booking {
	struct booking *next, *former; /* the ring that it replaces lends it bytes */
	const struct session *session;
	uint64_t bytes;
};

/* ---- ring memory ---- */

static struct booking **find(struct proc *p, const struct session *s)
{
	struct booking **at = &p->bookings;

	while (*at && (*at)->session != s)
		at = &(*at)->next;
	return at;
}

uint64_t grant_booked(const struct proc *p)
{
	uint64_t bytes = 0;

	for (const struct booking *b = p->bookings; b; b = b->next)
		bytes += b->bytes;
	return bytes;
}

static uint64_t lent(const struct proc *p)
{
	uint64_t bytes = 0;

	for (const struct booking *b = p->bookings; b; b = b->next)
		if (b->former)
			bytes += b->bytes < b->former->bytes ? b->bytes : b->former->bytes;
	return bytes;
}

bool __real_session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	struct fault *fault);
bool __wrap_session_reserve(struct session *s, const struct wire *w, struct ring_geometry *geometry,
	struct fault *fault)
{
	struct proc *p = fiber_proc();

	if (!__real_session_reserve(s, w, geometry, fault)) {
		world_counts.no_room += fault->code == FAULT_MEMORY;
		return false;
	}
	struct booking *b = __real_calloc(1, sizeof(*b));

	CHECK(b && !*find(p, s));
	b->session = s;
	b->bytes = geometry->meta_bytes + geometry->data_bytes;
	b->former = s->replaces ? *find(p, s->replaces) : NULL;
	CHECK(b->former || !s->replaces);
	b->next = p->bookings;
	p->bookings = b;
	CHECK(grant_booked(p) - lent(p) <= p->ring_limit);
	CHECK(grant_booked(p) <= 2 * p->ring_limit);
	return true;
}

void __real_session_release(struct session *s);
void __wrap_session_release(struct session *s)
{
	struct proc *p = fiber_proc();
	struct booking **at = find(p, s), *b = *at;

	__real_session_release(s);
	if (!b)
		return;
	*at = b->next;
	for (struct booking *other = p->bookings; other; other = other->next)
		if (other->former == b)
			other->former = NULL;
	__real_free(b);
	CHECK(p->ring_bytes <= grant_booked(p));
}

void grants_of_dead(struct proc *p)
{
	for (struct booking *b = p->bookings, *next; b; b = next) {
		next = b->next;
		__real_free(b);
	}
	p->bookings = NULL;
}
