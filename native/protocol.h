/* Words that the supervisor and PID 1 of a box exchange.
 *
 * One SOCK_SEQPACKET datagram is one message; numbers are little-endian and packed.
 * trialyard/sandboxes/protocol.py is the other end: change both together.
 */
#ifndef TRIALYARD_PROTOCOL_H
#define TRIALYARD_PROTOCOL_H

#include <stdint.h>

enum { PROTOCOL_VERSION = 3, CONTROL_FD = 3, MAX_REQUEST = 160 * 1024 };

/* Hard limit of RLIMIT_LOCKS of command N is LOCKS_MARKER - N: see init.c. */
static const uint64_t LOCKS_MARKER = 1ULL << 40;

enum request_op { REQUEST_RUN = 1, REQUEST_KILL = 2, REQUEST_SIGNAL = 3 };
enum reply_op { REPLY_HELLO = 1, REPLY_EXITED = 2, REPLY_KILLED = 3 };

/* RUN: body = cwd, argv, env and supplementary groups as NUL-terminated strings; descriptors
 * by SCM_RIGHTS: [stdin] stdout stderr, those that go to first_extra_fd and up, [memfd holding
 * the body]. FLAG_TERMINAL: stdin becomes the controlling terminal. FLAG_USER: become uid, gid
 * and the groups before the start. */
enum {
    FLAG_STDIN = 1,
    FLAG_BODY_IN_MEMFD = 2,
    FLAG_SHARED = 4,
    FLAG_TERMINAL = 8,
    FLAG_USER = 16
};

/* KILL: FLAG_ALONE when nothing but this command has run in the box meanwhile; FLAG_IN_SHELL
 * for a command of a shell, whose leader (of command `shell`) stays.
 * SIGNAL: to the process group, or FLAG_LEADER_ONLY, or FLAG_IN_SHELL: to what a command of a
 * shell has started and what is still in the shell's session. */
enum { FLAG_ALONE = 1, FLAG_IN_SHELL = 2, FLAG_LEADER_ONLY = 4 };

struct request {
    uint32_t op;
    uint32_t id;
    uint32_t flags;
    uint32_t argc;
    uint32_t envc;
    uint32_t body_bytes;
    int32_t signal;
    uint32_t shell;
    uint32_t first_extra_fd;
    uint32_t uid;
    uint32_t gid;
    uint32_t num_groups;
} __attribute__((packed));

/* To a zygote: descriptors are init's pidfd, [stdin], stdout, stderr; the body begins with
 * the name of the box's cgroup. */
struct fork_request {
    struct request run;
    uint64_t open_files;
    uint32_t command; /* its number in its box; run.id is the zygote's own */
} __attribute__((packed));

struct reply {
    uint32_t op;
    uint32_t id;
    int32_t wait_status;  /* as wait4 gives it */
    int32_t start_errno;  /* not 0: the command could not be started */
    uint64_t cpu_us;      /* of the leader and its waited-for children */
    uint32_t others_left; /* 1: processes of this box outlive the leader */
} __attribute__((packed));

#endif
