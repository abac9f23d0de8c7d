#include "proto/status_members.h"

const struct status_member status_session_members[] = {{WIRE_ID, "session"}, {WIRE_RANK, "rank"},
	{WIRE_WORLD, "world"}, {WIRE_MICRO, "micro"}, {WIRE_PEER, "peer"}, {WIRE_PID, "pid"},
	{WIRE_POSITION, "position"}, {WIRE_SLOTS, "slots"}, {WIRE_PUBLISHED, "published"},
	{WIRE_RELEASED, "released"}, {WIRE_STALL_MS, "full_ms"}, {WIRE_LOST_WAKES, "lost_wakes"},
	{WIRE_WAITS, "waits"}, {WIRE_WAITED_MS, "waited_ms"}, {WIRE_MEMORY_BYTES, "memory_bytes"},
	{WIRE_REQUEST_KEY, "request"}, {0}};

const struct status_member status_daemon_members[] = {{WIRE_SESSIONS, "sessions"},
	{WIRE_PID, "pid"}, {WIRE_UPTIME_MS, "uptime_ms"}, {WIRE_MEMORY_BYTES, "memory_bytes"},
	{WIRE_LIMIT_BYTES, "limit_bytes"}, {WIRE_LOST_WAKES, "lost_wakes"}, {0}};
