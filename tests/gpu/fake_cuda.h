/* Functions that the stand-in for CUDA exports in addition, to control it. */
#ifndef TOKEND_FAKE_CUDA_H
#define TOKEND_FAKE_CUDA_H

/*
 * Environment:
 *   FAKE_CUDA_DELAY_MS=N         queued work is done after N ms at the earliest
 *   FAKE_CUDA_REGISTER_FAILS=N   the N-th registration and all later ones fail
 */

int fakeFaults(void); /* number of rule violations, each a line on stderr. Any at exit: status 99 */
int fakeRegistered(void); /* number of registered regions */
void fakeHold(int on);	  /* while on, only a synchronize does queued work */
int fakePending(void);	  /* number of queued copies and calls */
/* Begins or ends a capture on @stream in global mode. Calls that could disturb it return 900 and
 * invalidate it. */
void fakeCapture(void *stream, int on);
int fakeCaptureSpoiled(void);

#endif
