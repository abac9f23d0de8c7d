/* Streams, events and captures of the fake driver. */
#include "tests/gpu/fake_state.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* cuda.h, which declares them, is not used  \
						       */

/* ---- streams and events ---- */

API int cuStreamCreate(void **stream, unsigned flags)
{
	int error;
	struct context *c = enter(&error, "cuStreamCreate", false);

	(void)flags;
	if (!c)
		return error;
	for (int i = 1; i < STREAMS; i++)
		if (!c->stream[i].used) {
			c->stream[i].used = true;
			*stream = &c->stream[i];
			return leave(OK);
		}
	return leave(OUT_OF_MEMORY);
}

API int cuStreamIsCapturing(void *stream, int *status)
{
	int error;
	struct context *c = enter(&error, "cuStreamIsCapturing", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	*status = s && s->capturing;
	return leave(s ? OK : INVALID_HANDLE);
}

API int cuStreamSynchronize(void *stream)
{
	int error;
	struct context *c = enter(&error, "cuStreamSynchronize", true);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (s)
		advance(s, true);
	return leave(s ? OK : INVALID_HANDLE);
}

/* Calls for the whole context invalidate any capture in it, in every mode. */
static bool conflicts(void)
{
	if (captures > 0)
		spoiled = 1;
	return captures > 0;
}

API int cuCtxSynchronize(void)
{
	int error;
	struct context *c = enter(&error, "cuCtxSynchronize", true);

	if (!c)
		return error;
	if (conflicts())
		return leave(CAPTURE_UNSUPPORTED);
	advance_all(c, true);
	return leave(OK);
}

API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *data)
{
	int error;
	struct context *c = enter(&error, "cuLaunchHostFunc", false);

	if (!c)
		return error;

	struct stream *s = stream_of(c, stream);

	if (!s)
		return leave(INVALID_HANDLE);

	struct op *op = queue(s, HOST);

	op->call = call;
	op->data = data;
	return leave(OK);
}

API int cuEventCreate(void **event, unsigned flags)
{
	int error;
	struct context *c = enter(&error, "cuEventCreate", false);

	(void)flags;
	if (!c)
		return error;

	struct event *e = calloc(1, sizeof(*e));

	e->context = c;
	*event = e;
	return leave(OK);
}

API int cuEventDestroy_v2(void *event)
{
	int error;

	if (!enter(&error, "cuEventDestroy", false))
		return error;
	if (((struct event *)event)->waits)
		fault("an event was destroyed before its time");
	free(event);
	return leave(OK);
}

static void record(struct event *e, struct stream *s)
{
	struct op *op = queue(s, RECORD);

	e->waits++;
	op->event = e;
	op->recording = e->recording;
}

API int cuEventRecord(void *event, void *stream)
{
	int error;
	struct context *c = enter(&error, "cuEventRecord", false);

	if (!c)
		return error;

	struct event *e = event;
	struct stream *s = stream_of(c, stream);

	if (!s || e->context != c) {
		fault("an event and a stream of different contexts");
		return leave(INVALID_HANDLE);
	}
	e->recording++;
	e->waits = 0;
	record(e, s);
	return leave(OK);
}

API int cuCtxRecordEvent(void *context, void *event)
{
	int error;

	if (!enter(&error, "cuCtxRecordEvent", false))
		return error;
	if (number("FAKE_CUDA_NO_RECORD", 0))
		return leave(NOT_SUPPORTED);
	if (conflicts())
		return leave(CAPTURE_UNSUPPORTED);

	struct context *c = context;
	struct event *e = event;

	e->recording++;
	e->waits = 0;
	for (int i = 0; i < STREAMS; i++)
		if (c->stream[i].used && c->stream[i].first)
			record(e, &c->stream[i]);
	return leave(OK);
}

API int cuEventQuery(void *event)
{
	int error;
	struct context *c = enter(&error, "cuEventQuery", true);

	if (!c)
		return error;
	advance_all(c, false);
	return leave(((struct event *)event)->waits ? NOT_READY : OK);
}
