// SPDX-License-Identifier: Apache-2.0
//
// Tells systemd how the service is, by its datagram protocol. Without systemd nothing happens.

#ifndef SERVER_NOTIFY_H
#define SERVER_NOTIFY_H

// Sends lines such as "READY=1" to $NOTIFY_SOCKET.
void notify(const char *state);

// Seconds between two "WATCHDOG=1" that systemd expects, 0: none.
double notify_watchdog(void);

#endif
