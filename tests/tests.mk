# SPDX-License-Identifier: Apache-2.0
#
# The test targets; the Makefile includes this file.

TEST_C := $(wildcard tests/*_test.c)

lint: deps-test
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
	@luacheck -q $$(git ls-files '*.lua')
