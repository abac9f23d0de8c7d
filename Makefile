# tokend. `make help` lists the targets; V=1 prints the commands.
#
# A directory per variant: build/gcc (which is installed), build/asan (clang, ASan + UBSan),
# build/tsan, build/fuzz (libFuzzer) and build/cover (line coverage). All use the same rules, with
# other compilers and flags.

PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
MANDIR  ?= $(PREFIX)/share/man
DOCDIR  ?= $(PREFIX)/share/doc/tokend
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR  ?= $(PREFIX)/share/zsh/site-functions
PYTHONDIR ?= $(PREFIX)/lib/tokend/python
VARIANT ?= gcc
PYTHON   = build/venv/bin/python
VERSION  = $(shell sed -n 's/.*TOKEND_VERSION "\(.*\)"/\1/p' proto/version.h)

CC          = $(or $(CC_$(VARIANT)),gcc)
CC_asan     = clang
CC_fuzz     = clang
CC_cover    = clang
CC_arm64    = aarch64-linux-gnu-gcc
cross       = $(filter arm64,$(VARIANT))
O           = build/$(VARIANT)
FLAGS_gcc   = -O2 -D_FORTIFY_SOURCE=2 -fstack-protector-strong -ffile-prefix-map=$(CURDIR)=.
FLAGS_arm64 = $(FLAGS_gcc)
FLAGS_asan  = -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FLAGS_tsan  = -O1 -fsanitize=thread
FLAGS_fuzz  = $(FLAGS_asan) -fsanitize=fuzzer-no-link
# All processes of a program count in one mapped file: nothing is lost with one that is killed.
FLAGS_cover = -O1 -fprofile-instr-generate=$(CURDIR)/build/cover/counts/%c%m.profraw -fcoverage-mapping -mllvm -runtime-counter-relocation -Wno-unused-command-line-argument
WARNINGS = -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
system  = $(if $(cross),build/arm64-root)/usr# where headers and libraries are
INCLUDES = -I. -Iclient/lib $(addprefix -isystem ,$(wildcard /usr/share/include/llhttp) $(if $(cross),$(system)/include $(system)/include/aarch64-linux-gnu))
ALL_CFLAGS  = -std=gnu11 -D_GNU_SOURCE $(INCLUDES) -g -fPIC -fvisibility=hidden -MMD -MP $(WARNINGS) $(FLAGS_$(VARIANT)) $(CFLAGS)
ALL_LDFLAGS = $(FLAGS_$(VARIANT)) $(if $(cross),-L$(system)/lib/aarch64-linux-gnu) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)
LIBS        = -luv -luring -lyaml -lzstd -lz -ljansson -lnettle -lexpat -lm -lpthread # --as-needed: each program keeps its own
# The HTTP parser. Debian 12 has its sources only, later releases a library.
llhttp      = $(patsubst /usr/share/llhttp/%.c,$(if $(cross),$(O),build)/llhttp/%.o,$(wildcard /usr/share/llhttp/*.c))
LIBS       += $(if $(llhttp),,-lllhttp)

# The rooms (see daemon/ARCHITECTURE.md), and the sources of each program.
room    = $(foreach r,$(1),$(wildcard $(r)/*.c))
proto   = $(call room,proto)
shard   = $(call room,daemon/shard)
files   = $(call room,daemon/config daemon/catalog daemon/store) $(shard)
daemon  = $(call room,daemon/engine daemon/io daemon/reader daemon/control) $(files)
client  = $(call room,client/lib)
ctl     = $(call room,client/ctl client/ctl/*) $(client) $(files) $(proto)
python  = $(call room,client/python/src) $(client) $(proto)
tests   = $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_*.c))
modules = $(wildcard $(addprefix client/python/tokend/,*.py */*.py *.pyi py.typed))
sources = $(wildcard $(foreach r,proto daemon daemon/* client/* client/*/* tests/* bench,$(r)/*.[ch]))

objects = $(patsubst %.c,$(O)/%.o,$(1))
manuals = $(addprefix build/gcc/man/,tokctl.1 tokend.8 tokend.yaml.5)
completions = $(addprefix build/gcc/completion/,tokctl.bash tokend.bash _tokctl)
Q   = $(if $(V),,@)
say = $(if $(V),,@printf '  %-7s %s\n' '$(1)' '$(2)';)

# One job per processor, unless -j says otherwise. Only the makes below this one collect a command's
# output (--output-sync): the output of `run` and `test` must appear at once.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
else
MAKEFLAGS += --output-sync=target
endif
MAKEFLAGS += --no-builtin-rules --no-print-directory

.PHONY: all programs links python unit helpers help run run-objects test test-objects test-trainers nightly prove coverage keepers fuzz fuzzers soak bench bench-quick check-gpu gpu-kit cuda-programs wheel wheel-arm64 wheel-programs \
	deps deb install uninstall format lint tidy clean
.DEFAULT_GOAL = all
.SECONDARY:

all: programs python links $(manuals) $(completions) ## daemon, tokctl, library, Python package and man pages, in build/bin, lib, python, gcc/man
programs: $(addprefix $(O)/bin/,tokend tokctl example-trainer bench-micro) $(O)/lib/libtokend.so

help: ## print this list
	@sed -n 's/^\([a-z0-9-]*\):.* ## /\1\t/p' Makefile | awk -F'\t' '{printf "  make %-15s %s\n", $$1, $$2}'

# ---- compiling and linking ----

$(O)/%.o: %.c Makefile
	$(Q)mkdir -p $(@D)
	$(call say,$(CC),$<)$(CC) $(ALL_CFLAGS) -c $< -o $@

$(sort $(llhttp)): %.o: Makefile
	$(Q)mkdir -p $(@D)
	$(call say,CC,$@)$(if $(cross),$(CC),gcc) -O2 -fPIC $(INCLUDES) -c /usr/share/llhttp/$(*F).c -o $@

$(call objects,client/ctl/web/cmd_serve.c): $(wildcard client/ctl/web/page.*) # .incbin is in no .d file

# Loops over all tokens must be vectorised: they run in the trainer's thread, or over whole shards.
$(call objects,client/lib/widen.c daemon/shard/tokens.c): FLAGS_$(VARIANT) += -O3
# Loops over positions must be unrolled, but there is no vector product of 64 bits.
$(call objects,proto/order_mix.c proto/order_shuffle.c): FLAGS_$(VARIANT) += -O3 -fno-tree-vectorize -fno-tree-slp-vectorize

link = $(Q)mkdir -p $(@D); $(if $(V),,printf '  %-7s %s\n' LINK $@;) $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)
program = $(link) $(LIBS)
shared  = $(link) $(if $(findstring wheel,$@),-s) -shared -lm -lpthread
dynamic = $(link) -L$(O)/lib -ltokend -Wl,-rpath,'$$ORIGIN/../lib'

$(O)/bin/tokend $(O)/wheel/tokend: $(call objects,daemon/tokend.c $(daemon) $(proto))
$(O)/bin/tokctl $(O)/wheel/tokctl: $(call objects,$(ctl)) $(llhttp)
$(O)/bin/bench-micro: $(call objects,bench/micro.c $(client) $(proto))
$(addprefix $(O)/bin/,tokend tokctl bench-micro):
	$(program)

$(O)/bin/example-trainer: $(call objects,client/example/trainer.c) $(O)/lib/libtokend.so
	$(dynamic)
$(O)/lib/libtokend.so.1 $(O)/wheel/libtokend.so.1: $(call objects,$(client) $(proto))
	$(shared) -Wl,-soname,libtokend.so.1 $(if $(filter asan,$(VARIANT)),,-Wl,-z,defs) # clang has ASan in programs only

$(O)/lib/libtokend.so: $(O)/lib/libtokend.so.1
	$(Q)ln -sf libtokend.so.1 $@

# Built, without nvcc, if CUDA's headers and static runtime are installed; need only a driver to run.
CUDA ?= /usr/local/cuda
cudart = -L$(CUDA)/lib64 -lcudart_static -ldl -lrt -lpthread
cuda_found = $(and $(wildcard $(CUDA)/include/cuda_runtime.h),$(wildcard $(CUDA)/lib64/libcudart_static.a))
cuda_programs = $(if $(cuda_found),build/gcc/bin/example-gpu-trainer build/gcc/bin/bench-h2d)

build/gcc/tests/gpu/gpu_trainer.o build/gcc/bench/h2d.o: INCLUDES += -isystem $(CUDA)/include
build/gcc/bin/example-gpu-trainer: build/gcc/tests/gpu/gpu_trainer.o build/gcc/lib/libtokend.so
	$(dynamic) $(cudart)
build/gcc/bin/bench-h2d: build/gcc/bench/h2d.o $(patsubst %.c,build/gcc/%.o,$(client) $(proto))
	$(program) $(cudart)

include tests/rules.mk

$(manuals) &: $(addprefix build/gcc/bin/,tokctl tokend) $(wildcard client/ctl/man/*.txt client/ctl/man/pages.py)
	$(Q)mkdir -p build/gcc/man; python3 client/ctl/man/pages.py build/gcc/bin build/gcc/man
build/gcc/completion/%: build/gcc/bin/tokctl; $(Q)mkdir -p $(@D); $< completion $(if $(filter _%,$*),zsh,bash) >$@
links: programs # build/bin and build/lib
	$(Q)ln -sfn gcc/bin build/bin; ln -sfn gcc/lib build/lib

# ---- Python: built for the stable ABI, so one build serves Python 3.10 and later ----

info = tokend-$(VERSION).dist-info# as in a wheel
python: build/python/tokend/_tokend.abi3.so $(modules:client/python/%=build/python/%) build/python/$(info)/METADATA
	$(Q)rm -f $(filter-out $(modules:client/python/%=build/python/%),$(wildcard build/python/tokend/*.py build/python/tokend/*/*.py))

build/python/tokend-%.dist-info/METADATA:
	$(Q)mkdir -p $(@D); printf 'Metadata-Version: 2.1\nName: tokend\nVersion: %s\n' $* >$@

build/python/tokend/%: client/python/tokend/%
	$(Q)mkdir -p $(@D); cp $< $@

include_python = $(system)$(patsubst /usr%,%,$(shell /usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("include"))'))
$(call objects,$(call room,client/python/src)): ALL_CFLAGS += -I$(include_python) -Wno-missing-prototypes
build/python/tokend/_tokend.abi3.so $(O)/wheel/_tokend.abi3.so: $(call objects,$(python))
	$(shared)

# ---- running and testing; each target installs missing packages first (tests/deps.sh) ----

deps: deps-run
deps-%:
	$(Q)tests/deps.sh $*

run: deps-run ## train a small GPT on real text, while daemon and trainers are killed
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) tests/show.py

run-objects: deps-run-objects ## the same with the shards in an object store, which is killed, too
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) tests/show.py --store

# They build what they need (tests/run).
test: deps-test ## run all tests; T=NAME: those whose names contain NAME
	$(Q)$(PYTHON) tests/run $(T)
test-objects: deps-objects ## run tests with real object stores: radosgw, moto, nginx over TLS, hadro
	$(Q)$(PYTHON) tests/run --objects $(T)
test-trainers: deps-$(if $(T),nightly,trainers) ## run real trainers with the wheel: killed, resumed, on other world sizes
	$(Q)$(PYTHON) tests/run --trainers $(T)
nightly: deps-nightly ## run what takes too long for each commit: all trainers, planted bugs, TSan, new seeds
	$(Q)$(PYTHON) tests/run --nightly $(T)

prove: deps-run ## check the claims of order and cursor for two minutes; SEED=… repeats a run
	+$(Q)$(MAKE) build/gcc/check/prove
	$(Q)build/gcc/check/prove $(if $(SEED),--seed $(SEED)) $(T)

coverage: deps-test ## run tests with coverage; print product functions that they no longer reach; T=NAMES BASE=FILE
	+$(Q)$(MAKE) all unit
	+$(Q)$(MAKE) VARIANT=cover programs unit build/cover/wheel/_tokend.abi3.so
	$(Q)$(PYTHON) tests/reached.py $(if $(BASE),--base $(BASE)) $(T)

keepers: deps-test ## plant each bug of tests/bugs in a copy of the tree; its test must fail; T=NAMES
	+$(Q)$(MAKE) all unit
	$(Q)$(PYTHON) tests/keepers.py $(T)

FUZZ_SECONDS ?= 60
fuzz: deps-test ## fuzz every parser of foreign bytes, FUZZ_SECONDS each, or MINUTES in all
	+$(Q)$(MAKE) programs # tokctl writes cursors
	+$(Q)$(MAKE) VARIANT=fuzz fuzzers
	$(Q)$(PYTHON) tests/fuzz/run.py $(if $(MINUTES),--minutes $(MINUTES),--seconds $(FUZZ_SECONDS))

soak: deps-test ## kills, long life, simulator, memory model, fuzzers, for MINUTES (30); prints totals
	+$(Q)$(MAKE) all unit
	+$(Q)$(MAKE) VARIANT=fuzz fuzzers
	$(Q)$(PYTHON) tests/soak/run.py --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

bench: deps-bench ## measure tokend relative to other loaders and to the machine's limits, 30 minutes
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) bench/run.py
bench-quick: deps-bench ## the main figures of bench, in 2 minutes
	+$(Q)$(MAKE) all
	$(Q)$(PYTHON) bench/run.py --quick

# For a machine without a compiler: run `make gpu-kit` here, copy build/gpu and the sources, and run
# `make check-gpu` there.
kit  = $(if $(wildcard build/gcc),,$(wildcard build/gpu))
ours = $(filter build/venv/%,$(PYTHON))
cuda-programs: $(cuda_programs)
check-gpu: $(if $(kit),,$(if $(ours),deps-run)) ## run the checks that need a GPU; PYTHON=… chooses the interpreter
	+$(Q)$(if $(kit),:,$(MAKE) all cuda-programs)
	$(Q)$(if $(kit),$(if $(ours),$(firstword $(wildcard $(PYTHON)) python3),$(PYTHON)),$(PYTHON)) tests/gpu/check.py $(T) || test $$? = 77

gpu-kit: wheel ## make build/gpu, for check-gpu on a machine without a compiler
	+$(Q)$(MAKE) cuda-programs
	$(Q)rm -rf build/gpu && mkdir -p build/gpu/bin build/gpu/lib
	$(Q)build/wheel-venv/bin/pip install -qq --disable-pip-version-check --no-index --no-deps --no-compile \
		--target build/gpu/site build/dist/tokend-*.whl
	$(Q)cp -t build/gpu/lib build/gcc/lib/libtokend.so.1
	$(Q)$(if $(cuda_programs),cp -t build/gpu/bin $(cuda_programs) && strip --strip-debug build/gpu/bin/*)

# ---- installing ----

wheel-arm64: ## the same for arm64 with a cross compiler, tried with qemu
	+$(Q)$(MAKE) deps-wheel
	+$(Q)tests/arm64.sh
wheel: deps-wheel ## make build/dist/tokend-*.whl for pip, for this machine's architecture
	+$(Q)$(MAKE) VARIANT=gcc all
	+$(Q)$(MAKE) wheel-programs
	$(Q)rm -f $(O)/wheel/*.whl $(dist)/tokend-*.whl
	$(Q)build/wheel-venv/bin/python client/python/wheel.py $(O) $(O)/wheel
	$(Q)$(audit) -w $(dist) $(O)/wheel/*.whl >$(O)/wheel/audit.log 2>&1 || { cat $(O)/wheel/audit.log; exit 1; }
	$(Q)ls $(dist)/*.whl

dist  = $(if $(cross),$(O),build)/dist
# Without a patcher it fails if a library is needed that the programs do not contain.
audit = SOURCE_DATE_EPOCH=315532800 build/wheel-venv/bin/auditwheel repair --plat auto --patcher none

# They contain their libraries, so pip can put them into bin/ as they are. The map lists the archives.
archives = -Wl,-Bstatic $(patsubst -luv,$(if $(wildcard /usr/lib/*/libuv_a.a),-luv_a,-luv),$(filter-out -lm -lpthread,$(LIBS))) -Wl,-Bdynamic -lm -lpthread
wheel-programs: $(addprefix $(O)/wheel/,tokend tokctl libtokend.so.1 _tokend.abi3.so tokend.pc) $(if $(cross),,$(manuals) $(completions))
$(O)/wheel/tokend $(O)/wheel/tokctl:
	$(link) -s $(archives) -Wl,-Map=$@.map
# pkg-config replaces ${pcfiledir}, so the package works wherever pip installs it.
$(O)/wheel/tokend.pc: override PREFIX = $${pcfiledir}/../..
$(O)/wheel/tokend.pc: override LIBDIR = $${prefix}/lib
$(O)/wheel/tokend.pc: RPATH = -Wl,-rpath,$${libdir} # the loader does not look there otherwise
$(O)/wheel/tokend.pc: client/lib/tokend.pc.in Makefile proto/version.h
	$(Q)mkdir -p $(@D); $(fill) $< >$@

# debian/ may not be at the top of the tree, so the packages are built in a copy of links.
deb: deps-deb ## make build/deb/*.deb: tokend, tokctl, libtokend1, libtokend-dev, python3-tokend
	+$(Q)$(MAKE) all
	$(Q)rm -rf build/deb && mkdir -p build/deb/tree
	$(Q)ln -s $(addprefix ../../../,$(filter-out build,$(wildcard *)) build) build/deb/tree/
	$(Q)cp -r systemd/debian build/deb/tree/debian
	$(Q)awk -v maintainer="$$(sed -n 's/^Maintainer: //p' systemd/debian/control)" \
		-f systemd/debian/changelog.awk daemon/CHANGES.md >build/deb/tree/debian/changelog
	+$(Q)cd build/deb/tree && DEB_BUILD_OPTIONS="$${DEB_BUILD_OPTIONS-noautodbgsym}" dpkg-buildpackage --build=binary --no-sign --no-pre-clean >../log 2>&1 || \
		{ tail -n 20 ../log && exit 1; }
	$(Q)ls build/deb/*.deb

units   = $(wildcard systemd/*.service systemd/*.socket)
manual  = $(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(1)))/$(notdir $(1))
fill    = sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@RPATH@|$(RPATH)|'
site    = $(DESTDIR)$(PYTHONDIR)

install: all ## install into PREFIX (/usr/local) below DESTDIR
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))install -Dm755 -t $(DESTDIR)$(PREFIX)/bin build/gcc/bin/tokend build/gcc/bin/tokctl
	$(Q)install -Dm644 -t $(DESTDIR)$(PREFIX)/include client/lib/tokend.h
	$(Q)install -Dm755 -t $(DESTDIR)$(LIBDIR) build/gcc/lib/libtokend.so.1
	$(Q)ln -sf libtokend.so.1 $(DESTDIR)$(LIBDIR)/libtokend.so
	$(Q)$(foreach module,$(modules:client/python/%=%),install -Dm644 client/python/$(module) $(site)/$(module) &&) true
	$(Q)install -Dm755 -t $(site)/tokend build/python/tokend/_tokend.abi3.so
	$(Q)install -Dm644 -t $(site)/$(info) build/python/$(info)/METADATA
	$(Q)install -Dm644 -t $(DESTDIR)$(DOCDIR) config/tokend.yaml config/alerts.yaml config/dashboard.json systemd/objects.conf README.md
	$(Q)install -Dm644 systemd/tokend.sysusers $(DESTDIR)$(SYSUSERSDIR)/tokend.conf
	$(Q)install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(LIBDIR)/pkgconfig
	$(Q)$(fill) client/lib/tokend.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/tokend.pc
	$(Q)$(foreach unit,$(units),$(fill) $(unit) >$(DESTDIR)$(UNITDIR)/$(notdir $(unit)) &&) true
	$(Q)$(foreach page,$(manuals),install -Dm644 $(page) $(call manual,$(page)) &&) true
	$(Q)$(foreach p,tokctl tokend,install -Dm644 build/gcc/completion/$(p).bash $(DESTDIR)$(BASHDIR)/$(p) &&) true
	$(Q)install -Dm644 -t $(DESTDIR)$(ZSHDIR) build/gcc/completion/_tokctl

uninstall: ## remove what install made
	$(Q)rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/tokend bin/tokctl include/tokend.h)
	$(Q)rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libtokend.so libtokend.so.1 pkgconfig/tokend.pc)
	$(Q)rm -f $(units:systemd/%=$(DESTDIR)$(UNITDIR)/%) $(DESTDIR)$(SYSUSERSDIR)/tokend.conf $(foreach page,$(manuals),$(call manual,$(page)))
	$(Q)rm -f $(addprefix $(DESTDIR)$(BASHDIR)/,tokctl tokend) $(DESTDIR)$(ZSHDIR)/_tokctl
	$(Q)rm -rf $(site)/tokend $(site)/$(info) $(DESTDIR)$(DOCDIR)
	$(Q)rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/lib/tokend/python $(DESTDIR)$(PREFIX)/lib/tokend 2>/dev/null || true

# ---- maintenance ----

format: ## format C with clang-format, Python with ruff
	$(Q)clang-format -i $(sources)
	$(Q)build/venv/bin/ruff format -q client tests bench tests/run

lint: deps-test ## check style, words, the layers of the code, pictures and shell scripts
	$(Q)$(PYTHON) tests/run --lint
	$(Q)shellcheck -x .ci/run $(wildcard tests/*.sh tests/system/*.sh tests/objects/*.sh)

tidy: deps-test ## run clang-tidy over the product, which takes 20 minutes of CPU time
	$(Q)printf '%s\n' $(proto) daemon/tokend.c $(daemon) $(client) $(call room,client/ctl client/ctl/*) bench/micro.c | \
		xargs -P $$(nproc) -n 1 sh -c 'clang-tidy --quiet --warnings-as-errors="*" "$$@" -- -std=gnu11 -D_GNU_SOURCE $(INCLUDES)' tidy

clean: ## remove build/
	$(Q)rm -rf build

-include $(shell find $(O) -name '*.d' 2>/dev/null)
