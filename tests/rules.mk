# How the test programs are built. Part of the Makefile, which has the variables.

# Tests link against this archive. It contains no main().
$(O)/all.a: $(call objects,$(proto) $(daemon) $(client))
	$(Q)rm -f $@; $(AR) rcs $@ $^

$(O)/check/test_%: $(O)/tests/unit/test_%.o $(O)/all.a
	$(link) -lcmocka $(LIBS)

# The calls of the linked code go to a disk in memory (tests/disk/calls.h).
disk_calls = close fstat fsync getrandom log_write mkdirat open openat __openat_2 read renameat \
	unlinkat write
$(O)/check/test_power_cut: $(patsubst %,$(O)/tests/%.o,unit/test_power_cut unit/state_disk disk/calls disk/model) $(O)/all.a
	$(link) -lcmocka $(LIBS)
$(patsubst %,$(O)/tests/%.o,unit/state_disk disk/calls memory/trace $(addprefix sim/,grant proc shared_memory socket storage)): ALL_CFLAGS += -Wno-missing-prototypes
$(O)/check/test_power_cut: ALL_LDFLAGS += $(disk_calls:%=-Wl,--wrap=%)

# For the Python tests: readers of shards and stores, trainers, a strict stand-in for CUDA.
$(O)/check/shard-cat: $(O)/tests/unit/shard_cat.o $(O)/all.a
$(O)/check/store-cat: $(O)/tests/unit/store_cat.o $(O)/all.a
# For the Python tests, with the library that is installed: a trainer that names a config.
$(O)/check/config-trainer: $(O)/tests/unit/config_trainer.o $(O)/lib/libtokend.so
	$(dynamic)
$(O)/check/sim: $(call objects,$(call room,tests/sim tests/disk)) $(O)/all.a
$(O)/check/prove: $(call objects,$(call room,tests/prove)) $(O)/all.a
$(addprefix $(O)/check/,shard-cat store-cat prove):
	$(program)
# System calls of the daemon and the library go to the simulator, which has its own libuv. Code
# between which rings are shared can be interrupted, or killed, at every branch.
preempted = $(patsubst %.c,$(O)/preempted/%.o,$(client) $(call room,daemon/engine) daemon/control/data_thread.c)
$(O)/preempted/%.o: %.c Makefile
	$(Q)mkdir -p $(@D)
	$(call say,$(CC),$<)$(CC) $(ALL_CFLAGS) -fsanitize-coverage=trace-pc -c $< -o $@
$(O)/check/sim: $(preempted) tests/sim/wrap.txt
	$(link) @tests/sim/wrap.txt $(filter-out -luv -luring,$(LIBS))

$(O)/check/fake/libcuda.so.1: $(O)/tests/gpu/fake_cuda.o
	$(program) -shared -Wl,-soname,libcuda.so.1
$(O)/check/example-gpu-trainer: $(O)/fake/tests/gpu/gpu_trainer.o $(O)/all.a
	$(program) $(fake)
$(O)/check/copies-trainer: $(O)/fake/tests/gpu/copies_trainer.o $(O)/all.a
	$(program) $(fake) -Wl,--wrap=mmap
$(O)/check/example-gpu-trainer $(O)/check/copies-trainer: $(O)/check/fake/libcuda.so.1
fake = $(O)/check/fake/libcuda.so.1 -Wl,-rpath,'$$ORIGIN/fake'
$(O)/fake/%.o: %.c Makefile tests/gpu/include/cuda_runtime.h
	$(Q)mkdir -p $(@D)
	$(call say,$(CC),$<)$(CC) $(ALL_CFLAGS) -Itests/gpu/include -c $< -o $@

# Fuzzers. An input also says which allocation and which call on a file fails (tests/fuzz/fail.h).
# Built for asan, without the coverage that guides libFuzzer, they run known inputs.
failing = malloc calloc realloc strdup strndup asprintf \
	open openat fopen opendir fstat read pread preadv2 write fsync renameat linkat mkdirat mmap
fuzzers: $(patsubst tests/fuzz/fuzz_%.c,$(O)/check/fuzz-%,$(wildcard tests/fuzz/fuzz_*.c))
$(O)/check/fuzz-record: $(filter-out %/cmd_verify.o,$(call objects,$(call room,client/ctl/common client/ctl/offline)))
$(O)/check/fuzz-%: $(O)/tests/fuzz/fuzz_%.o $(O)/tests/fuzz/fail.o $(O)/all.a
	$(program) -fsanitize=fuzzer $(failing:%=-Wl,--wrap=%)

# For tests/soak: a trainer that takes batches at full speed.
$(O)/check/long-life: $(call objects,tests/soak/long_life.c $(client) $(proto))
	$(program)
helpers = $(addprefix $(O)/check/,shard-cat store-cat copies-trainer example-gpu-trainer config-trainer fake/libcuda.so.1)
helpers: $(helpers) $(if $(filter gcc,$(VARIANT)),build/gcc/check/long-life wheel-programs cuda-programs)
unit: helpers $(tests:%=$(O)/check/%) $(addprefix $(O)/check/,sim prove)

# All executions under C11's memory rules (tests/memory/explorer.h). gcc compiles the explored code
# as for ThreadSanitizer, with calls at all accesses, and trace.c defines them. Without PIE, so that
# addr2line finds the addresses that it prints.
traced   = proto/ring.c $(call room,daemon/engine) client/lib/next.c client/lib/mapping.c $(addprefix tests/memory/,litmus.c ring_sides.c)
explorer = $(filter-out $(traced),$(call room,tests/memory) $(proto))
build/gcc/traced/%.o: FLAGS_gcc = -O2 -fsanitize=thread -fno-optimize-sibling-calls \
	$(foreach f,calloc free aligned_alloc memset memcpy,-D$f=traced_$f) -D__assert_fail=traced_assert_fail
build/gcc/traced/%.o: %.c Makefile
	$(Q)mkdir -p $(@D)
	$(call say,$(CC),$<)$(CC) $(ALL_CFLAGS) -c $< -o $@
build/gcc/check/memory: $(traced:%.c=build/gcc/traced/%.o) $(explorer:%.c=build/gcc/%.o)
	$(link) -no-pie -lm
ifeq ($(VARIANT),gcc)
unit: build/gcc/check/memory
endif
