# SPDX-License-Identifier: Apache-2.0
#
# The test targets; the Makefile includes this file. A test is a script tests/*.t, or a C program tests/*_test.c that is linked
# with what it needs of the engine; contract_test.c is linked with the embedded model as well.

T          := $(B)/tests
TEST_NAMES := $(basename $(notdir $(filter-out tests/contract_test.c,$(wildcard tests/*_test.c))))
TEST_BINARIES := $(TEST_NAMES:%=$(T)/%) $(T)/contract_test
TEST_SCRIPTS  := $(wildcard tests/*.t)
MODEL_TEST := $(B)/flashnext

$(T)/engine.a: $(CPU_OBJECTS) $(filter-out $(B)/common/runtime/main.o,$(RUNTIME_OBJECTS))
	@mkdir -p $(@D)
	@rm -f $@ && ar rcs $@ $^

$(T)/%_test: tests/%_test.c $(T)/engine.a $(wildcard tests/*.h)
	@echo "  cc $<"
	@$(CC) $(BASE) -Wno-missing-field-initializers -o $@ $< $(T)/engine.a $(LIBS)

# The store's red controls are compiled into a copy of it.
$(T)/store_test: tests/store_test.c graphs/store.c $(T)/engine.a
	@echo "  cc $<"
	@$(CC) $(BASE) -DGRAPH_TEST -o $@ tests/store_test.c graphs/store.c $(T)/engine.a $(LIBS)

$(T)/contract_test: tests/contract_test.c $(T)/engine.a all
	@echo "  cc $<"
	@$(CC) $(BASE) -I$(MODEL_TEST)/gen -o $@ $< $(wildcard $(MODEL_TEST)/gen/*.o) $(T)/engine.a $(LIBS)

test: deps-test
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory MODEL=flashnext NAME=flashnext CHECKPOINT= all $(TEST_BINARIES)
	@prove --exec '' --timer $(TEST_SCRIPTS) $(TEST_BINARIES)

lint: deps-test
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
	@luacheck -q $$(git ls-files '*.lua')
