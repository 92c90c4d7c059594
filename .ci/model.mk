# SPDX-License-Identifier: Apache-2.0
#
# Compiles what the generator wrote for one model and links its binary. Called by the Makefile, which knows the variables.

GENERATED := $(wildcard $(DIR)/gen/*.c) $(DIR)/gen/pack_blob.S
MODEL_OBJECTS := $(addsuffix .o,$(GENERATED))

$(DIR)/$(NAME): $(MODEL_OBJECTS) $(OBJECTS) $(DIR)/gen/fixed
	@echo "  link $@"
	@$(CC) $(CFLAGS) -o $@.tmp $(filter-out %/fixed,$^) $(LIBS)
	@mv $@.tmp $@

$(DIR)/gen/%.c.o: $(DIR)/gen/%.c
	@echo "  cc $<"
	@$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

$(DIR)/gen/%.S.o: $(DIR)/gen/%.S $(wildcard $(DIR)/$(NAME).pack)
	@$(CC) -I$(DIR) -Wa,-I$(DIR) -c $< -o $@

# Made before this file is read; only `make -n` in a tree without them finds none.
$(OBJECTS) $(DIR)/gen/fixed $(DIR)/gen/pack_blob.S: ;

-include $(MODEL_OBJECTS:.o=.d)
