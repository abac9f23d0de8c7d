/* What the fake libcuda.so.1 exports beside a real one's functions, for tests to direct it. */
#ifndef TOKEND_FAKE_CUDA_H
#define TOKEND_FAKE_CUDA_H

/*
 * Environment:
 *   FAKE_CUDA_INIT=34            cuInit() answers that, as a toolkit's stub does
 *   FAKE_CUDA_DELAY_MS=N         queued work is not done before that many ms are over
 *   FAKE_CUDA_REGISTER_FAILS=N   the N-th cuMemHostRegister() and all behind it fail
 *   FAKE_CUDA_NO_RECORD=1        cuCtxRecordEvent() is not supported
 *   FAKE_CUDA_DEVICES=N          default 1
 *   FAKE_CUDA_ANY_MEMORY=1       copies may go to memory that cuMemAlloc() did not give
 */

int fakeFaults(void); /* rules broken so far; each is a line on stderr. Any at exit: status 99 */
int fakeRegistered(void); /* regions */
int fakeIsRegistered(const void *at);
void fakeHold(int on); /* while on, no queued work is done but in a synchronize */
void fakeRush(void);   /* what is queued is due now */
int fakePending(void); /* operations queued and not done */
/* Begins or ends a capture on @stream in global mode: calls that could disturb it are refused with
 * 900, and spoil it. */
void fakeCapture(void *stream, int on);
int fakeCaptureSpoiled(void);
int fakePrimaryRefs(int device);

#endif
