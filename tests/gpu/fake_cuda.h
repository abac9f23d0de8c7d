/* Functions that the fake libcuda.so.1 exports in addition to the driver's, to control it. */
#ifndef TOKEND_FAKE_CUDA_H
#define TOKEND_FAKE_CUDA_H

/*
 * Environment:
 *   FAKE_CUDA_INIT=34            cuInit() returns 34, as the stub of a toolkit does
 *   FAKE_CUDA_DELAY_MS=N         queued work is done after N ms at the earliest
 *   FAKE_CUDA_REGISTER_FAILS=N   the N-th cuMemHostRegister() and all later ones fail
 *   FAKE_CUDA_NO_RECORD=1        cuCtxRecordEvent() is not supported
 */

int fakeFaults(void); /* number of rule violations, each a line on stderr. Any at exit: status 99 */
int fakeRegistered(void); /* number of registered regions */
void fakeHold(int on);	  /* while on, only a synchronize does queued work */
void fakeRush(void);	  /* makes all queued work due now */
int fakePending(void);	  /* number of queued copies and calls */
/* Begins or ends a capture on @stream in global mode. Calls that could disturb it return 900 and
 * invalidate it. */
void fakeCapture(void *stream, int on);
int fakeCaptureSpoiled(void);
int fakePrimaryRefs(int device);

#endif
