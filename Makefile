# tokend. `make run` shows it, `make test` proves it; both install what is missing first. V=1 shows the commands.
# `make test-trainers` proves it in the trainers that people use.
#
# Everything is built under build/, once a variant: build/gcc (what is installed), build/clang, build/asan (ASan + UBSan) and
# build/tsan and build/fuzz (libFuzzer) come from the same rules with other compilers and flags.

PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
MANDIR  ?= $(PREFIX)/share/man
DOCDIR  ?= $(PREFIX)/share/doc/tokend
VARIANT ?= gcc
PYTHON   = build/venv/bin/python
VERSION  = $(shell sed -n 's/.*TOKEND_VERSION "\(.*\)"/\1/p' proto/version.h)

CC_gcc   = gcc
CC_clang = clang
CC_asan  = gcc
CC_tsan  = gcc
CC_fuzz  = clang
HARDENED    = -O2 -D_FORTIFY_SOURCE=2 -fstack-protector-strong
FLAGS_gcc   = $(HARDENED)
FLAGS_clang = $(HARDENED)
FLAGS_asan  = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan  = -O1 -fsanitize=thread
FLAGS_fuzz  = -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

CC       = $(CC_$(VARIANT))
O        = build/$(VARIANT)
WARNINGS = -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
ALL_CFLAGS  = -std=gnu11 -D_GNU_SOURCE -I. -g -fPIC -fvisibility=hidden -MMD -MP $(WARNINGS) $(FLAGS_$(VARIANT)) $(CFLAGS)
ALL_LDFLAGS = $(FLAGS_$(VARIANT)) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)

proto   = $(wildcard proto/*.c)
shards  = $(wildcard daemon/shard/*.c)
catalog = $(wildcard daemon/config/*.c daemon/catalog/*.c) $(shards)
daemon  = $(catalog) $(wildcard daemon/engine/*.c daemon/io/*.c daemon/reader/*.c daemon/control/*.c)
client  = $(wildcard client/lib/*.c)
ctl     = $(wildcard client/ctl/*.c client/ctl/*/*.c) $(client) $(catalog) $(proto)
tests   = $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
modules = $(wildcard $(addprefix client/python/tokend/,*.py */*.py *.pyi py.typed))
sources = $(wildcard $(foreach room,proto daemon daemon/* client/* client/*/* tests/* bench,$(room)/*.[ch]))

objects = $(patsubst %.c,$(O)/%.o,$(1))

Q = $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)';)

# As many jobs as there are processors, unless -j says otherwise. Compilers' messages are kept together in the makes below
# the first one only: what `run` and `test` print is to be seen as it comes.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
else
MAKEFLAGS += --output-sync=target
endif
MAKEFLAGS += --no-builtin-rules --no-print-directory

.PHONY: all programs unit run test test-trainers prove fuzz bench check-gpu gpu-kit cuda-programs wheel deps deps-test deps-trainers deps-wheel \
	install uninstall format format-check lint clean
.DEFAULT_GOAL = all
.SECONDARY:

all: programs python links
programs: $(O)/bin/tokend $(O)/bin/tokctl $(O)/lib/libtokend.so $(O)/bin/example-trainer $(O)/bin/bench-next \
	$(O)/bin/bench-order $(O)/bin/bench-polite $(O)/bin/bench-shard
	@:

# ---- compiling and linking ----

$(O)/%.o: %.c Makefile
	$(Q)mkdir -p $(@D)
	$(call say,$(CC),$<)$(CC) $(ALL_CFLAGS) -c $< -o $@

$(O)/client/example/trainer.o: ALL_CFLAGS += -Iclient/lib

# The widening loops are the one place where the trainer's own CPU goes.
$(O)/client/lib/widen.o: FLAGS_$(VARIANT) += -O3

# Loops over all stored tokens must vectorise, too.
$(O)/daemon/shard/convert.o $(O)/daemon/shard/tokens.o: FLAGS_$(VARIANT) += -O3

link = $(Q)mkdir -p $(@D); $(if $(V),,printf '  %-7s %s\n' LINK $@;) $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^)

$(O)/bin/tokend: $(call objects,daemon/main.c $(daemon) $(proto))
	$(link) -luv -luring -lyaml -lmicrohttpd -lzstd -lz -ljansson -lm -lpthread

$(O)/bin/tokctl: $(call objects,$(ctl))
	$(link) -lyaml -lzstd -lz -ljansson -lm -lpthread

$(O)/lib/libtokend.so.1: $(call objects,$(client) $(proto))
	$(link) -shared -Wl,-soname,libtokend.so.1 -Wl,-z,defs -lm

$(O)/lib/libtokend.so: $(O)/lib/libtokend.so.1
	$(Q)ln -sf libtokend.so.1 $@

$(O)/bin/example-trainer: $(call objects,client/example/trainer.c) $(O)/lib/libtokend.so
	$(link) -L$(O)/lib -ltokend -Wl,-rpath,'$$ORIGIN/../lib'

$(O)/bin/bench-next: $(call objects,bench/next.c $(client) $(proto))
	$(link) -lm

$(O)/bin/bench-polite: $(call objects,bench/polite.c $(client) $(proto))
	$(link) -lm

$(O)/bin/bench-order: $(call objects,bench/order.c $(proto))
	$(link) -lm

$(O)/bin/bench-shard: $(call objects,bench/shard.c $(shards))
	$(link) -lzstd -lz -ljansson -lpthread

# Programs against the CUDA runtime: built where its headers and its static library are, without nvcc, and needed by nothing else.
# The runtime is in them: they run where only a driver is.
CUDA ?= /usr/local/cuda
cudart = -L$(CUDA)/lib64 -lcudart_static -ldl -lrt -lpthread
cuda_programs = $(if $(and $(wildcard $(CUDA)/include/cuda_runtime.h),$(wildcard $(CUDA)/lib64/libcudart_static.a)),build/gcc/bin/example-gpu-trainer build/gcc/bin/bench-h2d)

build/gcc/client/example/gpu_trainer.o build/gcc/bench/h2d.o: ALL_CFLAGS += -isystem $(CUDA)/include
build/gcc/bin/example-gpu-trainer: build/gcc/client/example/gpu_trainer.o build/gcc/lib/libtokend.so
	$(link) -Lbuild/gcc/lib -ltokend $(cudart) -Wl,-rpath,'$$ORIGIN/../lib'

build/gcc/bin/bench-h2d: build/gcc/bench/h2d.o $(patsubst %.c,build/gcc/%.o,$(client) $(proto))
	$(link) $(cudart) -lm

# Tests link what they name out of this archive; it holds no main().
$(O)/all.a: $(call objects,$(proto) $(daemon) $(client))
	$(Q)rm -f $@; $(AR) rcs $@ $^

unit: $(tests:%=$(O)/check/%) $(O)/check/sim $(O)/check/prove $(O)/check/shard-cat $(O)/check/pin-trainer $(O)/check/fake/libcuda.so.1
	@:

$(O)/check/test_%: $(O)/tests/unit/test_%.o $(O)/all.a
	$(link) -lcmocka -luv -luring -lyaml -lmicrohttpd -lzstd -lz -ljansson -lm -lpthread

# What the tests in Python read shards with.
$(O)/check/shard-cat: $(O)/tests/unit/shard_cat.o $(call objects,$(shards))
	$(link) -lzstd -lz -ljansson -lpthread

# A trainer, and in place of a GPU's driver a library that is strict about how it is used.
$(O)/check/pin-trainer: $(O)/tests/gpu/pin_trainer.o $(call objects,$(client) $(proto))
	$(link) -lm

$(O)/check/fake/libcuda.so.1: $(O)/tests/gpu/fake_cuda.o
	$(link) -shared -Wl,-soname,libcuda.so.1 -lpthread

$(O)/check/fuzz-%: $(O)/tests/fuzz/fuzz_%.o $(call objects,daemon/catalog/manifest.c $(shards))
	$(link) -fsanitize=fuzzer -lzstd -lz -ljansson -lpthread

$(O)/check/sim: $(call objects,$(wildcard tests/sim/*.c)) $(O)/all.a
	$(link) -lm -lpthread

$(O)/check/prove: $(call objects,$(wildcard tests/prove/*.c) $(proto) $(wildcard daemon/engine/*.c))
	$(link) -lm

# What people and scripts use lies in one place, whatever the variant's name.
.PHONY: links python
links: programs
	$(Q)ln -sfn gcc/bin build/bin; ln -sfn gcc/lib build/lib

# ---- Python: the stable ABI, so one build serves every Python from 3.11 on ----

python: build/python/tokend/_tokend.abi3.so $(modules:client/python/%=build/python/%)

build/python/tokend/%: client/python/tokend/%
	$(Q)mkdir -p $(@D); cp $< $@

include_python = $(shell /usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')

$(patsubst %.c,build/gcc/%.o,$(wildcard client/python/src/*.c)): ALL_CFLAGS += -I$(include_python) -Wno-missing-prototypes
build/python/tokend/_tokend.abi3.so: $(patsubst %.c,build/gcc/%.o,$(wildcard client/python/src/*.c) $(client) $(proto))
	$(link) -shared -lm

# ---- the two commands ----

run: deps
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) client/example/gpt/run.py

# T=NAME runs only the tests whose names hold it.
test: deps-test
	+$(Q)$(MAKE) all unit cuda-programs
	+$(Q)$(MAKE) VARIANT=clang programs unit
	+$(Q)$(MAKE) VARIANT=asan programs unit
	+$(Q)$(MAKE) VARIANT=tsan build/tsan/check/test_ring build/tsan/check/test_zstd build/tsan/check/test_log
	+$(Q)$(MAKE) VARIANT=fuzz build/fuzz/check/fuzz-shard build/fuzz/check/fuzz-manifest
	$(Q)$(PYTHON) tests/run $(T)

# The same rows in every trainer, from the wheel: killed, resumed, on more and on fewer processes.
test-trainers: deps-trainers
	+$(Q)$(MAKE) wheel
	$(Q)$(PYTHON) tests/run --trainers $(T)

# The claims of order and cursor, over as many cases as two minutes hold. SEED=… to have a run again.
prove: deps
	+$(Q)$(MAKE) build/gcc/check/prove
	$(Q)build/gcc/check/prove $(if $(SEED),--seed $(SEED)) $(T)

# Every parser of what others wrote, for so long each.
FUZZ_SECONDS ?= 60
fuzz: deps-test
	+$(Q)$(MAKE) VARIANT=fuzz build/fuzz/check/fuzz-shard build/fuzz/check/fuzz-manifest
	$(Q)$(PYTHON) tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

# What only a GPU can show; where there is none: skipped. PYTHON=… for one whose torch sees it, else it is that of build/venv.
#
# Where nothing can be built or installed: `make gpu-kit` here, build/gpu carried there with the sources, and there `make check-gpu`,
# which takes that if nothing was built, and the machine's python3; or, without make, `python3 tests/gpu/check.py`.
kit  = $(if $(wildcard build/gcc),,$(wildcard build/gpu))
ours = $(filter build/venv/%,$(PYTHON))

cuda-programs: $(cuda_programs)
	@:

check-gpu: $(if $(kit),,$(if $(ours),deps))
	+$(Q)$(if $(kit),:,$(MAKE) all cuda-programs)
	$(Q)$(if $(kit),$(if $(ours),$(firstword $(wildcard $(PYTHON)) python3),$(PYTHON)),$(PYTHON)) tests/gpu/check.py $(T) || test $$? = 77

gpu-kit: wheel
	+$(Q)$(MAKE) cuda-programs
	$(Q)rm -rf build/gpu && mkdir -p build/gpu/bin build/gpu/lib
	$(Q)build/wheel-venv/bin/pip install -qq --disable-pip-version-check --no-index --no-deps --no-compile --target build/gpu/site build/dist/tokend-*.whl
	$(Q)cp -t build/gpu/lib build/gcc/lib/libtokend.so.1
	$(Q)$(if $(cuda_programs),cp -t build/gpu/bin $(cuda_programs) && strip --strip-debug build/gpu/bin/*)

bench: deps-test
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) bench/run.py

deps:
	$(Q)tests/deps.sh run

deps-test:
	$(Q)tests/deps.sh test

deps-wheel:
	$(Q)tests/deps.sh wheel

deps-trainers:
	$(Q)tests/deps.sh trainers

# ---- installing ----

units   = $(wildcard systemd/*.service systemd/*.socket)
manuals = $(filter-out build/%,$(wildcard */*.[158] */*/*.[158]))
manual  = $(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(1)))/$(notdir $(1))

# Where things will lie is written into what says so to others.
fill    = sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|'

install: all
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))install -Dm755 -t $(DESTDIR)$(PREFIX)/bin build/gcc/bin/tokend build/gcc/bin/tokctl
	$(Q)install -Dm644 -t $(DESTDIR)$(PREFIX)/include client/lib/tokend.h
	$(Q)install -Dm755 -t $(DESTDIR)$(LIBDIR) build/gcc/lib/libtokend.so.1
	$(Q)ln -sf libtokend.so.1 $(DESTDIR)$(LIBDIR)/libtokend.so
	$(Q)$(foreach module,$(modules:client/python/%=%),install -Dm644 client/python/$(module) $(DESTDIR)$(PREFIX)/lib/tokend/python/$(module) &&) true
	$(Q)install -Dm755 -t $(DESTDIR)$(PREFIX)/lib/tokend/python/tokend build/python/tokend/_tokend.abi3.so
	$(Q)install -Dm644 -t $(DESTDIR)$(DOCDIR) config/tokend.yaml README.md
	$(Q)install -Dm644 systemd/tokend.sysusers $(DESTDIR)$(SYSUSERSDIR)/tokend.conf
	$(Q)install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(LIBDIR)/pkgconfig
	$(Q)$(fill) client/lib/tokend.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/tokend.pc
	$(Q)$(foreach unit,$(units),$(fill) $(unit) >$(DESTDIR)$(UNITDIR)/$(notdir $(unit)) &&) true
	$(Q)$(foreach page,$(manuals),install -Dm644 $(page) $(call manual,$(page)) &&) true

# What `pip install` takes: everything in one file, with the libraries that it needs.
wheel: deps-wheel
	+$(Q)$(MAKE) all
	$(Q)build/wheel-venv/bin/python client/python/wheel.py build/dist

uninstall:
	$(Q)rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/tokend bin/tokctl include/tokend.h)
	$(Q)rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libtokend.so libtokend.so.1 pkgconfig/tokend.pc)
	$(Q)rm -f $(units:systemd/%=$(DESTDIR)$(UNITDIR)/%) $(DESTDIR)$(SYSUSERSDIR)/tokend.conf
	$(Q)rm -f $(foreach page,$(manuals),$(call manual,$(page)))
	$(Q)rm -rf $(DESTDIR)$(PREFIX)/lib/tokend $(DESTDIR)$(DOCDIR)

# ---- keeping house ----

format:
	$(Q)clang-format -i $(sources)

format-check:
	$(Q)clang-format --dry-run -Werror $(sources)

lint: deps-test
	$(Q)printf '%s\n' $(proto) daemon/main.c $(daemon) $(client) $(wildcard client/ctl/*.c client/ctl/*/*.c) bench/next.c bench/order.c | \
		xargs -P $$(nproc) -n 1 sh -c 'clang-tidy --quiet --warnings-as-errors="*" "$$@" -- -std=gnu11 -D_GNU_SOURCE -I. -Iclient/lib' tidy
	$(Q)shellcheck .ci/run $(wildcard tests/*.sh tests/system/*.sh)
	$(Q)build/venv/bin/ruff check client tests bench

clean:
	$(Q)rm -rf build

-include $(patsubst %.c,$(O)/%.d,$(sort $(proto) $(daemon) $(ctl) daemon/main.c $(wildcard client/python/*.c bench/*.c) \
	$(wildcard client/example/*.c tests/unit/*.c tests/gpu/*.c tests/sim/*.c tests/prove/*.c tests/fuzz/*.c)))
