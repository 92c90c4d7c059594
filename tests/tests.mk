# SPDX-License-Identifier: Apache-2.0
#
# The test targets; the Makefile includes this file. A test is a script tests/*.t, or a C program tests/*_test.c that is linked
# with what it needs of the engine; contract_test.c is linked with the embedded model as well.

T          := $(B)/tests
TEST_NAMES := $(basename $(notdir $(filter-out tests/contract_test.c,$(wildcard tests/*_test.c))))
TEST_BINARIES := $(TEST_NAMES:%=$(T)/%) $(T)/contract_test $(T)/sim_test
TEST_SCRIPTS  := $(wildcard tests/*.t)
MODEL_TEST := $(B)/flashnext

$(T)/engine.a: $(CPU_OBJECTS) $(filter-out $(B)/common/runtime/main.o,$(RUNTIME_OBJECTS))
	@mkdir -p $(@D)
	@rm -f $@ && ar rcs $@ $^

$(T)/%_test: tests/%_test.c $(T)/engine.a $(wildcard tests/*.h)
	@echo "  cc $<"
	@$(CC) $(BASE) -Wno-missing-field-initializers -o $@ $< $(T)/engine.a $(LIBS)

# The store's red controls are compiled into a copy of it.
$(T)/store_test: tests/store_test.c graphs/store.c $(T)/$(TARGET)_engine.a
	@echo "  cc $<"
	@$(CC) $(BASE) -DGRAPH_TEST -o $@ $^ $(LIBS)

# The CUDA target's launches over a driver that counts its calls.
$(T)/exec_cuda_test: tests/exec_cuda_test.c graphs/exec_cuda.c tests/cuda_calls/cuda_runtime.h $(B)/common/kernel_list.h
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) -Itests/cuda_calls $(BASE) -Wno-missing-field-initializers -o $@ $<

$(T)/contract_test: tests/contract_test.c $(T)/engine.a all
	@echo "  cc $<"
	@$(CC) $(BASE) -I$(MODEL_TEST)/gen -o $@ $< $(wildcard $(MODEL_TEST)/gen/*.o) $(T)/engine.a $(LIBS)

# Of the target's memory, what tests/contract/memory.c stands before.
MEMORY_WRAPS := $(addprefix -Wl$(COMMA)--wrap=,device_alloc device_host_alloc mirror_open)

# The contract program of a model, beside its binary and its pack: make CHECKPOINT=dir NAME=x contracts
# Its objects are the same for every model, but for two, whose copies have the faults of red controls.
CONTRACT := $(patsubst %.c,$(T)/$(TARGET)/%.o,$(wildcard tests/contract/*.c) graphs/store.c runtime/engine_run.c)
$(T)/$(TARGET)/%.o: %.c $(B)/common/kernel_list.h
	@mkdir -p $(@D)
	@$(CC) $(BASE) -DGRAPH_TEST -DENGINE_TEST -Wno-missing-field-initializers -MMD -MP -c $< -o $@
-include $(CONTRACT:.o=.d)
contracts: $(DIR)/contracts
$(DIR)/contracts: $(CONTRACT) $(T)/$(TARGET)_engine.a all
	@echo "  cc tests/contract"
	@$(CC) $(BASE) $(MEMORY_WRAPS) -o $@ $(CONTRACT) $(wildcard $(GEN)/*.o) $(FIXED_OBJECTS) $(T)/$(TARGET)_engine.a $(LIBS)
# The engine of a target without the commands and the server.
$(T)/$(TARGET)_engine.a: $(KERNEL_OBJECTS) $(filter-out $(B)/common/runtime/main.o $(B)/common/runtime/cmd_%.o $(B)/common/runtime/server/%.o,$(RUNTIME_OBJECTS))
	@mkdir -p $(@D)
	@rm -f $@ && ar rcs $@ $^
.PHONY: contracts

# Lanes and the prompt cache, with a page pool that checks what is written and what is given back.
$(T)/lanes_test $(T)/cache_test $(T)/cache_disk_test $(T)/turns_test $(T)/bench_test: $(T)/%_test: tests/%_test.c tests/contract/scene.c runtime/pages.c \
    $(T)/engine.a all $(wildcard tests/*.h) tests/contract/scene.h
	@echo "  cc $<"
	@$(CC) $(BASE) -DPAGES_DEBUG -Wno-missing-field-initializers -I$(MODEL_TEST)/gen -o $@ $< tests/contract/scene.c \
	    runtime/pages.c $(wildcard $(MODEL_TEST)/gen/*.o) $(T)/engine.a $(LIBS)

# Replies without memory.
REPLY_SOURCES := $(filter-out %/style.c,$(wildcard runtime/reply/*.c))
$(T)/reply_memory_test: tests/reply_memory_test.c $(REPLY_SOURCES) $(wildcard runtime/reply/*.h tests/sim/alloc.h) $(T)/engine.a
	@echo "  cc $<"
	@$(CC) $(BASE) -DSIM_REALLOC -include tests/sim/alloc.h -Wno-missing-field-initializers -o $@ $< $(REPLY_SOURCES) $(T)/engine.a $(LIBS)

# Replies against chat templates of every family.
TURN_TEMPLATES := $(foreach f,qwen3 qwen3_coder qwen3_6 flash_next nemotron embedded,$(T)/turns/template_$(f).c)
$(T)/turns/template_%.c: tests/fixtures/templates/%.jinja $(wildcard gen/template*.lua)
	@mkdir -p $(@D)
	@$(LUA) gen/template.lua $< $@ template_$*
$(T)/reply_turns_test: tests/reply_turns_test.c $(TURN_TEMPLATES) $(T)/engine.a
	@echo "  cc $<"
	@$(CC) $(BASE) -o $@ $^ $(LIBS)

# Dialects of chat, warm turns: the embedded model's tokenizer with a template that has tools.
$(T)/turns/chat_template.c: tests/fixtures/templates/flash_next.jinja $(wildcard gen/template*.lua)
	@mkdir -p $(@D)
	@$(LUA) gen/template.lua $< $@ chat_template
$(T)/dialects_test $(T)/structured_test $(T)/warm_test: $(T)/%: tests/%.c $(T)/turns/chat_template.c $(T)/engine.a all
	@echo "  cc $<"
	@$(CC) $(BASE) -Wno-unused-function -I$(MODEL_TEST)/gen -o $@ $(filter %.c,$^) $(filter-out %/template.c.o,$(wildcard $(MODEL_TEST)/gen/*.o)) $(T)/engine.a $(LIBS)

# The embedded model's binary with that template, for the server's tests of reasoning.
$(T)/reasons: $(T)/turns/chat_template.c $(B)/common/runtime/main.o $(T)/engine.a all
	@echo "  link $@"
	@$(CC) $(BASE) -Wno-unused-function -I$(MODEL_TEST)/gen -o $@ $(filter %.c %.o,$^) $(filter-out %/template.c.o,$(wildcard $(MODEL_TEST)/gen/*.o)) $(T)/engine.a $(LIBS)
$(T)/warm_http_test: | $(T)/reasons

# Grammars, over the embedded model's vocabulary; a part of the server without a listener.
$(T)/grammar_test $(T)/exchange_test: $(T)/%: tests/%.c $(T)/engine.a all
	@echo "  cc $<"
	@$(CC) $(BASE) -Wno-missing-field-initializers -I$(MODEL_TEST)/gen -o $@ $< $(wildcard $(MODEL_TEST)/gen/*.o) $(T)/engine.a $(LIBS)

# The red control is compiled into a copy of the constraint.
$(T)/constraint_test: tests/constraint_test.c tests/contract/memory.c runtime/constraint.c $(T)/engine.a all
	@echo "  cc $<"
	@$(CC) $(BASE) -DCONSTRAINT_TEST -Wno-missing-field-initializers -I$(MODEL_TEST)/gen $(MEMORY_WRAPS) -o $@ $< tests/contract/memory.c runtime/constraint.c \
	    $(wildcard $(MODEL_TEST)/gen/*.o) $(T)/engine.a $(LIBS)

# The simulator: the real scheduler over a toy model and target, with everything that can be made to fail.
SIM := $(wildcard tests/sim/*.c runtime/cache/*.c runtime/grammar/*.c) $(addprefix runtime/reply/,schema.c json_stream.c json_text.c) $(addprefix runtime/,$(addsuffix .c,constraint engine engine_run stream rounds admission pages depth copy_draft history \
    memory_plan json_exact)) graphs/store.c kernels/cpu/control.c
$(T)/sim_test: $(SIM) $(wildcard tests/sim/*.h runtime/*.h runtime/*/*.h graphs/*.h kernels/cpu/*.h) $(B)/common/kernel_list.h
	@mkdir -p $(@D)
	@echo "  cc tests/sim"
	@$(CC) $(BASE) -DPAGES_DEBUG -DENGINE_TEST -DGRAPH_TEST -DISA_NAME=portable -Wno-missing-field-initializers \
	    -include tests/sim/alloc.h -o $@ $(SIM) $(LIBS)

ifneq ($(SANITIZE),)
# A generated program is one long function: instrumented, it compiles in seconds only without optimisation, and its work is in
# the kernels anyway. Appended to the last flag that the model's rule passes on.
$(DIR)/$(NAME): private GEN := $(GEN) -O0
endif

test: deps-test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j$$(nproc) MODEL=flashnext NAME=flashnext CHECKPOINT= all $(TEST_BINARIES)
	@prove --exec '' --timer $(TEST_SCRIPTS) $(TEST_BINARIES)

# ASan and UBSan: the whole set on every instruction set. The short form has the portable kernels alone, and of the tests those
# that name no instruction set. CPU minutes: 12 and 2.
test-sanitize: deps-test
	@$(MAKE) --no-print-directory SANITIZE=1 CFLAGS=-O1 MODEL=flashnext NAME=flashnext CHECKPOINT= sanitized
sanitized: all $(TEST_BINARIES)
	@BINARY=$(DIR)/$(NAME) prove --exec '' --timer $(TEST_BINARIES) tests/cli.t tests/embedded.t
test-sanitize-short: deps-test
	@$(MAKE) --no-print-directory SANITIZE=1 ARCH=portable B=build/sanitize-short CFLAGS=-O1 MODEL=flashnext NAME=flashnext \
	    CHECKPOINT= sanitized-short
sanitized-short: all $(T)/pack_test $(T)/store_test $(T)/pool_test $(T)/tokenizer_test $(T)/sim_test
	@BINARY=$(DIR)/$(NAME) prove --exec '' --timer $(filter %_test,$^)
	@$(DIR)/$(NAME) run --quiet --temperature 0 -n 8 -p "How do I list files?"
.PHONY: test-sanitize-short sanitized-short test-sanitize sanitized

# The sources are found rather than asked of git, so that an unpacked archive can be tested too.
LINTED := gen graphs kernels models runtime tests
lint: deps-test
	@clang-format --dry-run -Werror $$(find $(LINTED) -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
	@luacheck -q $$(find $(LINTED) -name '*.lua')

# Rewrites the golden text of generated programs.
golden-update:
	@tests/generator.t --update

include tests/gpu/gpu.mk
