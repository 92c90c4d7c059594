// SPDX-License-Identifier: Apache-2.0
//
// One line on stderr for each request that asked for a reply, of name=value pairs.

#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "runtime/server/exchange.h"

void log_reply(const struct exchange *exchange, const struct outcome *outcome, const char *end);

#endif
