# SPDX-License-Identifier: Apache-2.0
#
# The only build entry.
#   make run                      builds the embedded model and answers a prompt
#   make MODEL=flashnext CHECKPOINT=dir [NAME=x] [TOKENIZER=file] [RECIPE=encodings]
#   make test                     every test that needs no GPU
#   make help                     all targets and variables

MODEL      ?= flashnext
CHECKPOINT ?=
NAME       ?= $(MODEL)
TARGET     ?= cpu
TOKENIZER  ?=
RECIPE     ?=
DRAFT_VOCAB ?=
LANES      ?= 4
WINDOW     ?= 6
CHUNK      ?= $(if $(filter cuda,$(TARGET)),4096,256)
PERMUTE    ?=
FUSE       ?= 1
PROMPT     ?= How do I list all files, also hidden ones?
SANITIZE   ?=
override SANITIZE := $(filter-out 0 no off,$(SANITIZE))
B          ?= build$(if $(SANITIZE),/sanitize)
# A list has spaces or commas between its parts, and what is in it twice counts once.
COMMA      := ,
listed      = $(sort $(subst $(COMMA), ,$(1)))
# What rules and commands are made of: no shell reads more in it than a word. $(call unfit,VALUE,PATTERNS) is empty where none fits.
unfit       = $(shell case '$(subst ','\'',$(1))' in ($(2)) echo unfit;; esac)
$(foreach word,MODEL RECIPE,$(if $(call unfit,$($(word)),*[!A-Za-z0-9._-]* | [.-]*), \
    $(error $(word)=$($(word)): $(if $(filter MODEL,$(word)),a family such as flashnext,the name of encodings such as nvfp4-modelopt) is expected)))
ifneq ($(call unfit,$(NAME),'' | packer | *[!A-Za-z0-9._-]* | [.-]*),)
$(error $(if $(filter file,$(origin NAME)),MODEL=$(MODEL) without NAME: a family such as flashnext$(COMMA) or a NAME beside it$(COMMA) is expected,NAME=$(NAME): a name of letters, digits, ., _ and - is expected, and not packer))
endif
$(foreach path,CHECKPOINT TOKENIZER DRAFT_VOCAB B DESTDIR PREFIX,$(if $(word 2,$($(path))), \
    $(error $(path)=$($(path)): make cannot have spaces in it; give a path without, such as that of a link))$(if \
    $(if $($(path)),$(shell printf %s '$(subst ','\'',$($(path)))' | LC_ALL=C tr -d '\200-\377A-Za-z0-9._/+@%$(COMMA):=^~-'))$(filter -%,$($(path))), \
    $(error $(path)=$($(path)): the shell reads more than a name in it; give a path of letters and digits, such as that of a link)))
$(foreach number,LANES WINDOW CHUNK,$(if $(shell case '$(subst ','\'',$($(number)))' in ('' | *[!0-9]*) echo unfit;; esac), \
    $(error $(number)=$($(number)): a number is expected)))
ifneq ($(words $(TARGET) $(filter cpu cuda,$(TARGET))),2)
$(error TARGET=$(TARGET): cpu or cuda is expected)
endif

CC      ?= gcc
LUA     ?= lua5.4
ARCH    := $(shell uname -m)
WARN    := -Wall -Wextra -Wconversion -Wvla -Werror
CFLAGS  ?= -O2
BASE    := -std=gnu11 $(CFLAGS) $(WARN) -ffp-contract=off -fno-strict-aliasing -I. -I$(B)/common
LIBS    := -lxxhash -lpcre2-8 -lutf8proc -ljansson -lmicrohttpd -lpthread -lm
ifneq ($(SANITIZE),)
BASE    += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -DSANITIZE_BUILD
LIBS    += -fsanitize=address,undefined
endif

ifeq ($(TARGET),cuda)
CUDA    ?= /usr/local/cuda
NVCC    ?= $(if $(wildcard $(CUDA)/bin/nvcc),$(CUDA)/bin/nvcc,nvcc)
CHIPS   ?= 90a
override CHIPS := $(call listed,$(CHIPS))
KNOWN   := $(shell $(NVCC) --list-gpu-arch 2>/dev/null)
WRONG   := $(foreach chip,$(CHIPS),$(if $(filter compute_$(patsubst %a,%,$(patsubst %f,%,$(chip))),$(KNOWN)),,$(chip)))
ifneq ($(if $(CHIPS),$(if $(KNOWN),$(strip $(WRONG))),none),)
$(error CHIPS=$(or $(strip $(WRONG)),$(CHIPS)): chips that nvcc knows are expected, such as 90a ($(patsubst compute_%,%,$(KNOWN))))
endif
BASE    += -I$(CUDA)/include
NVFLAGS := -std=c++17 -O3 -I. -I$(B)/common -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers -Werror all-warnings --expt-relaxed-constexpr \
           $(if $(filter 90a,$(CHIPS)),-DWITH_WGMMA) $(if $(filter-out 90a,$(CHIPS)),,-DONLY_WGMMA) $(foreach chip,$(CHIPS),-gencode arch=compute_$(chip),code=sm_$(chip))
# Rows of a tile for which decode kernels are made for the model's own shapes too: those that rounds of LANES streams and WINDOW rows
# have. Launchers take such kernels on compute capability 9.
FIXED   ?= $(if $(filter 9%,$(CHIPS)),$(shell for rows in 1 2 4 8; do [ $$rows -lt $$((2 * $(LANES) * $(WINDOW))) ] && echo $$rows; done 2>/dev/null))
override FIXED := $(call listed,$(FIXED))
ifneq ($(filter-out 1 2 4 8,$(FIXED)),)
$(error FIXED=$(FIXED): some of 1, 2, 4 and 8 are expected, or none)
endif
# One binary that needs nothing but the driver and the HTTP library: the others are linked in.
LIBS    := -l:libxxhash.a -l:libpcre2-8.a -l:libutf8proc.a -l:libjansson.a -lmicrohttpd -L$(CUDA)/lib64 -lcudart_static -lpthread -ldl -lrt -lm -lstdc++
endif

# Instruction sets: the same kernel sources, compiled once for each.
ISAS           := portable
FLAGS_portable :=
ifeq ($(ARCH),x86_64)
ISAS           += avx2 avx512 amx
BASE           += -DHAVE_X86_ISAS
FLAGS_avx2     := -mavx2 -mfma -mf16c -mbmi2
FLAGS_avx512   := $(FLAGS_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
FLAGS_amx      := $(FLAGS_avx512) -mavx512vnni -mavx512vbmi -mavx512bf16 -mamx-tile -mamx-bf16
endif

ONCE     := kernels/cpu/isa.c $(wildcard kernels/cpu/layout*.c)
KERNELS  := $(filter-out $(ONCE),$(wildcard kernels/cpu/*.c))
OTHER    := $(if $(filter cuda,$(TARGET)),%_cpu.c graphs/kernels.c,%_cuda.c)
RUNTIME  := $(filter-out $(wildcard runtime/packer*.c) $(OTHER),$(wildcard runtime/*.c runtime/*/*.c graphs/*.c))
PACKER   := $(wildcard runtime/packer*.c) runtime/pack.c
CPU_OBJECTS := $(foreach isa,$(ISAS),$(KERNELS:%.c=$(B)/common/$(isa)/%.o)) $(ONCE:%.c=$(B)/common/%.o)
CUDA_OBJECTS := $(patsubst %.cu,$(B)/common/%.o,$(filter-out %/fixed.cu,$(wildcard kernels/cuda/*.cu))) $(ONCE:%.c=$(B)/common/%.o)
KERNEL_OBJECTS := $(if $(filter cuda,$(TARGET)),$(CUDA_OBJECTS),$(CPU_OBJECTS))
RUNTIME_OBJECTS := $(RUNTIME:%.c=$(B)/common/%.o)
PACKER_OBJECTS  := $(PACKER:%.c=$(B)/common/%.o) $(ONCE:%.c=$(B)/common/%.o)

DIR  := $(B)/$(NAME)
GEN  := $(DIR)/gen
SRC  := $(if $(CHECKPOINT),$(CHECKPOINT),models/embedded)
FIXED_OBJECTS := $(if $(filter cuda,$(TARGET)),$(FIXED:%=$(DIR)/fixed_%.o))
HAVE_WEIGHTS = $(if $(RECIPE),,$(wildcard $(SRC)/*.safetensors))

.PHONY: all run install test bench lint deps deps-test clean help generate golden-update common FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: $(DIR)/$(NAME) $(if $(HAVE_WEIGHTS),$(DIR)/$(NAME).pack $(if $(filter cpu,$(TARGET)),$(DIR)/$(NAME).check))

help:
	@sed -n '3,8s/^# *//p' Makefile
	@echo "variables: MODEL CHECKPOINT NAME TARGET TOKENIZER RECIPE LANES WINDOW CHUNK DRAFT_VOCAB CHIPS FIXED SANITIZE=1 PROMPT=text DESTDIR PREFIX"
	@echo "targets:   run install test test-gpu test-gpu-bundle bench lint golden-update clean"

deps:
	@.ci/deps
deps-test:
	@.ci/deps --test

# ---- generated sources ------------------------------------------------------------------------------------------------

# The generator leaves unchanged files alone, so running it always is cheap and never rebuilds for nothing.
$(GEN)/stamp: FORCE | deps
	@mkdir -p $(GEN)
	@$(LUA) gen/main.lua $(if $(MODEL),--model $(MODEL)) --checkpoint $(SRC) --out $(GEN) --name $(NAME) --target $(TARGET) --lanes $(LANES) --window $(WINDOW) \
	    --chunk $(CHUNK) $(if $(TOKENIZER),--tokenizer $(TOKENIZER)) $(if $(RECIPE),--recipe $(RECIPE)) \
	    $(if $(DRAFT_VOCAB),--draft-vocab $(DRAFT_VOCAB)) \
	    $(if $(PERMUTE),--permute $(PERMUTE)) $(if $(filter 0,$(FUSE)),--no-fuse) $(if $(CHECKPOINT),,--embed)
	@touch $@
generate: $(GEN)/stamp

$(B)/common/kernel_list.h: gen/ops.lua gen/kernel_list.lua | deps
	@mkdir -p $(@D)
	@$(LUA) gen/kernel_list.lua >$@.tmp && mv $@.tmp $@

# ---- objects ------------------------------------------------------------------------------------------------------------

define kernel_rules
$(B)/common/$(1)/%.o: %.c $(B)/common/kernel_list.h
	@mkdir -p $$(@D)
	@echo "  cc $(1) $$<"
	@$(CC) $(BASE) $(FLAGS_$(1)) -DISA_NAME=$(1) -MMD -MP -c $$< -o $$@
endef
$(foreach isa,$(ISAS),$(eval $(call kernel_rules,$(isa))))

$(B)/common/%.o: %.c $(B)/common/kernel_list.h
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) $(BASE) -MMD -MP -c $< -o $@

$(B)/common/%.o: %.cu $(B)/common/kernel_list.h
	@mkdir -p $(@D)
	@echo "  nvcc $<"
	@$(NVCC) $(NVFLAGS) $(if $(filter linear% experts% embed%,$(notdir $<)),,-fmad=false) -MD -MP -c $< -o $@

$(B)/common/runtime/server/page.o: runtime/server/page.html

# Decode kernels with the model's shapes as constants, once for each number of rows of a tile. The generator is always run before, and
# shapes.cuh is newer only when it has changed.
$(GEN)/shapes.cuh: $(GEN)/stamp
	@:
$(FIXED_OBJECTS): $(DIR)/fixed_%.o: kernels/cuda/fixed.cu $(GEN)/shapes.cuh $(B)/common/kernel_list.h
	@echo "  nvcc $<, $* row$(if $(filter-out 1,$*),s) of $(NAME)"
	@$(NVCC) $(NVFLAGS) -I$(GEN) -DFIXED_ROWS=$* -MD -MP -c $< -o $@

# Which of them the binary has: it is linked again when that changes.
$(GEN)/fixed: FORCE
	@mkdir -p $(@D)
	@echo "$(FIXED_OBJECTS)" | cmp -s - $@ || echo "$(FIXED_OBJECTS)" >$@

-include $(FIXED_OBJECTS:.o=.d)
-include $(KERNEL_OBJECTS:.o=.d) $(RUNTIME_OBJECTS:.o=.d) $(PACKER_OBJECTS:.o=.d)

common: $(KERNEL_OBJECTS) $(RUNTIME_OBJECTS)

# ---- a model ------------------------------------------------------------------------------------------------------------

# The set of generated files is known only after the generator ran, so a second make compiles them.
$(DIR)/$(NAME): $(GEN)/stamp $(FIXED_OBJECTS) $(GEN)/fixed $(KERNEL_OBJECTS) $(RUNTIME_OBJECTS) $(B)/packer $(if $(CHECKPOINT),,$(DIR)/$(NAME).pack)
	+@$(MAKE) --no-print-directory -f .ci/model.mk DIR=$(DIR) NAME=$(NAME) CC="$(CC)" CFLAGS="$(BASE) -O1 -I$(GEN)" LIBS="$(LIBS)" \
	    OBJECTS="$(KERNEL_OBJECTS) $(RUNTIME_OBJECTS) $(FIXED_OBJECTS)"

$(B)/packer: $(PACKER_OBJECTS)
	@$(CC) $(BASE) -o $@ $^ $(LIBS)

# Packed again when the plan, the checkpoint's data or the packer changed.
$(DIR)/$(NAME).pack: $(GEN)/stamp $(B)/packer
	@for f in $(GEN)/pack.plan $(B)/packer $(wildcard $(SRC)/*.safetensors); do \
	    if [ ! -f $@ ] || [ $$f -nt $@ ]; then $(B)/packer $(GEN)/pack.plan $@ || exit 2; break; fi; done

# Reference rows for `check`, made by the portable kernels of this build.
$(DIR)/$(NAME).check: $(DIR)/$(NAME) $(DIR)/$(NAME).pack
	@$(DIR)/$(NAME) check --record $@ >/dev/null

# The prompt goes through the environment, so that nothing in it means something to make or the shell.
run: export PIANOLA_PROMPT = $(value PROMPT)
run: all
	@$(DIR)/$(NAME) run -p "$$PIANOLA_PROMPT"

# ---- installation ---------------------------------------------------------------------------------------------------------

# The binary with what it reads beside it, a link in the path, and a systemd unit.
PREFIX  ?= /usr/local
LIBDIR  := $(PREFIX)/lib/pianola/$(NAME)
UNITDIR ?= $(PREFIX)/lib/systemd/system
DEVICES := $(if $(filter cuda,$(TARGET)),DevicePolicy=auto,PrivateDevices=yes)
install: all
	@install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(UNITDIR)
	@install -m 0755 $(DIR)/$(NAME) $(DESTDIR)$(LIBDIR)/$(NAME)
	@for f in $(if $(CHECKPOINT),pack) check; do if [ -f $(DIR)/$(NAME).$$f ]; then \
	    install -m 0644 $(DIR)/$(NAME).$$f $(DESTDIR)$(LIBDIR)/; fi; done
	@ln -sf ../lib/pianola/$(NAME)/$(NAME) $(DESTDIR)$(PREFIX)/bin/pianola-$(NAME)
	@sed -e 's|@NAME@|$(NAME)|g; s|@LIBDIR@|$(LIBDIR)|g; s|@DEVICES@|$(DEVICES)|g' runtime/server/pianola.service.in \
	    >$(DESTDIR)$(UNITDIR)/pianola-$(NAME).service

# ---- tests ----------------------------------------------------------------------------------------------------------------

include tests/tests.mk

bench: all
	@$(DIR)/$(NAME) bench $(if $(HAVE_WEIGHTS),,--weights synthetic)

clean:
	rm -rf build
