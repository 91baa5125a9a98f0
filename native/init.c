/* PID 1 of a box: starts commands, reaps, and kills them with everything they started.
 *
 * Theory of operation. The supervisor sends requests over CONTROL_FD together with the
 * command's descriptors, so output never passes through this process. It is unprivileged
 * and lives in the box: the supervisor believes it only about how a command ended. It is
 * not dumpable, so nobody in the box can trace it, read its memory or take its descriptors,
 * and as PID 1 it ignores every signal from inside but SIGCHLD. When the control socket
 * closes it exits, and the kernel kills the rest of the box.
 *
 * Killing exactly one command. If nothing else was alive in the box when the command began,
 * everything in it belongs to that command and kill(-1) is exact and free of races (a
 * process that has a pending SIGKILL cannot fork). Otherwise lineage decides: whatever
 * descends from another living leader is spared, and orphans are told apart by a marker
 * that every command inherits and nobody in the box can raise: the hard limit of
 * RLIMIT_LOCKS, which the kernel keeps but does not use. Ids count up per box. A later
 * command has a lower marker, so a process can only pass itself off as a later command and be
 * killed for it. A shell lowers its own before each of its commands, which so have numbers of
 * their own: one of them is killed while the shell and older jobs of it stay.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "init.h"

enum { MAX_COMMANDS = 256, MAX_STRINGS = 1 << 16, MAX_FDS = 8 };

struct command {
    uint32_t id;
    pid_t leader; /* 0: slot is free */
    int alone; /* nothing else was alive while this ran */
};

static struct command commands[MAX_COMMANDS];
static int num_running;
static int null_fd;
static char request_buffer[sizeof(struct request) + MAX_REQUEST];

static void send_reply(const struct reply *reply) {
    while (send(CONTROL_FD, reply, sizeof *reply, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) _exit(0);
}

struct command *find_by_leader(pid_t pid) {
    for (int i = 0; num_running && i < MAX_COMMANDS; i++)
        if (commands[i].leader == pid) return &commands[i];
    return NULL;
}

static struct command *find_by_id(uint32_t id) {
    for (int i = 0; i < MAX_COMMANDS; i++)
        if (commands[i].leader && commands[i].id == id) return &commands[i];
    return NULL;
}

static void report_exit(struct command *command, int wait_status, const struct rusage *usage) {
    struct reply reply = {.op = REPLY_EXITED, .id = command->id, .wait_status = wait_status};
    reply.cpu_us = (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000ULL +
                   usage->ru_utime.tv_usec + usage->ru_stime.tv_usec;
    command->leader = 0;
    num_running--;
    siginfo_t info;
    reply.others_left = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    send_reply(&reply);
}

int reap(int options) {
    int status;
    struct rusage usage;
    pid_t pid = wait4(-1, &status, options, &usage);
    if (pid < 0 && errno == EINTR) return 1;
    if (pid <= 0) return 0;
    struct command *command = find_by_leader(pid);
    if (command) report_exit(command, status, &usage);
    return 1;
}

static void answer_not_started(uint32_t id, int error) {
    struct reply reply = {.op = REPLY_EXITED, .id = id, .start_errno = error};
    send_reply(&reply);
}

static int others_alive(void) {
    siginfo_t info;
    if (num_running) return 1;
    while (reap(WNOHANG)) continue;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static void start_command(const struct request *request, const struct start *start) {
    struct command *slot = NULL;
    int error = EAGAIN, alone = !others_alive() && !(request->flags & FLAG_SHARED);
    for (int i = 0; i < MAX_COMMANDS && !slot; i++)
        if (!commands[i].leader) slot = &commands[i];
    if (!alone)
        for (int i = 0; i < MAX_COMMANDS; i++) commands[i].alone = 0;
    pid_t pid = slot ? spawn(start, &error) : -1;
    if (pid < 0) {
        answer_not_started(request->id, error);
    } else if (error) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
        answer_not_started(request->id, error);
    } else {
        *slot = (struct command){request->id, pid, alone};
        num_running++;
    }
}

/* Cuts `count` NUL-terminated strings off the body; NULL when it ends too early. */
static char *cut_strings(char *at, char *end, char **strings, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        char *stop = at < end ? memchr(at, 0, end - at) : NULL;
        if (!stop) return NULL;
        strings[i] = at;
        at = stop + 1;
    }
    strings[count] = NULL;
    return at;
}

/* Fills in what the body says; returns 0 or an errno. */
static int parse_body(const struct request *request, char *body, struct start *start) {
    static char *strings[MAX_STRINGS + 3];
    char *end = body + request->body_bytes, *cwd[2], *groups[MAX_GROUPS + 1];
    if ((uint64_t)request->argc + request->envc > MAX_STRINGS) return E2BIG;
    if (request->argc < 1 || request->num_groups > MAX_GROUPS) return EINVAL;
    start->argv = strings;
    start->env = strings + request->argc + 1;
    if (!(body = cut_strings(body, end, cwd, 1)) ||
        !(body = cut_strings(body, end, start->argv, request->argc)) ||
        !(body = cut_strings(body, end, start->env, request->envc)) ||
        !cut_strings(body, end, groups, request->num_groups))
        return EINVAL;
    start->cwd = cwd[0];
    for (uint32_t i = 0; i < request->num_groups; i++)
        start->groups[i] = strtoul(groups[i], NULL, 10);
    return 0;
}

static void run(const struct request *request, char *body, int *fds, int num_fds) {
    int num_standard = request->flags & FLAG_STDIN ? 3 : 2;
    struct start start = {.request = request, .first_extra_fd = request->first_extra_fd};
    int error = num_fds < num_standard || request->first_extra_fd > 1 << 20 ? EINVAL : 0;
    if (!error) error = parse_body(request, body, &start);
    if (error) {
        answer_not_started(request->id, error);
        return;
    }
    start.marker = LOCKS_MARKER - request->id;
    start.fds[0] = num_standard == 3 ? fds[0] : null_fd;
    start.fds[1] = fds[num_standard - 2];
    start.fds[2] = fds[num_standard - 1];
    start.extra = fds + num_standard;
    start.num_extra = request->first_extra_fd ? num_fds - num_standard : 0;
    start_command(request, &start);
}

static void run_from_memfd(const struct request *request, int *fds, int num_fds) {
    struct stat status;
    void *body = MAP_FAILED;
    errno = EINVAL;
    if (num_fds > 0 && request->body_bytes > 0 && fstat(fds[num_fds - 1], &status) == 0 &&
        status.st_size >= request->body_bytes)
        body = mmap(NULL, request->body_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE,
                    fds[num_fds - 1], 0);
    if (body == MAP_FAILED) {
        answer_not_started(request->id, errno);
        return;
    }
    run(request, body, fds, num_fds - 1);
    munmap(body, request->body_bytes);
}

/* A command that is not in the table has ended, was forked by a zygote, or is a shell's; it has
 * a marker all the same. */
static void kill_command(const struct request *request) {
    int in_shell = request->flags & FLAG_IN_SHELL;
    struct command *slot = find_by_id(in_shell ? request->shell : request->id);
    struct target target = {slot ? slot->leader : 0, LOCKS_MARKER - request->id, in_shell, 0};
    if (request->flags & FLAG_ALONE || (slot && slot->alone && num_running == 1 && !in_shell))
        kill_everything();
    else
        kill_lineage(&target);
    struct reply reply = {.op = REPLY_KILLED, .id = request->id};
    send_reply(&reply);
}

static void send_signal(const struct request *request) {
    int in_shell = request->flags & FLAG_IN_SHELL;
    struct command *slot = find_by_id(in_shell ? request->shell : request->id);
    if (!slot) return;
    if (in_shell) {
        struct target target = {slot->leader, LOCKS_MARKER - request->id, 1, slot->leader};
        signal_target(&target, request->signal);
    } else {
        kill(request->flags & FLAG_LEADER_ONLY ? slot->leader : -slot->leader, request->signal);
    }
}

static void serve(const struct request *request, size_t length, int *fds, int num_fds) {
    if (request->op == REQUEST_KILL) kill_command(request);
    if (request->op == REQUEST_SIGNAL) send_signal(request);
    if (request->op != REQUEST_RUN) return;
    if (request->flags & FLAG_BODY_IN_MEMFD)
        run_from_memfd(request, fds, num_fds);
    else if (sizeof *request + request->body_bytes == length)
        run(request, request_buffer + sizeof *request, fds, num_fds);
    else
        answer_not_started(request->id, EINVAL);
}

static void serve_one(void) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec vector = {request_buffer, sizeof request_buffer - 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t length = recvmsg(CONTROL_FD, &message, MSG_CMSG_CLOEXEC);
    if (length < 0 && errno == EINTR) return;
    if (length <= 0) _exit(0); /* the supervisor is gone */
    int fds[MAX_FDS], num_fds = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) {
        num_fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(header), num_fds * sizeof(int));
    }
    request_buffer[length] = 0;
    if (length >= (ssize_t)sizeof(struct request))
        serve((struct request *)request_buffer, length, fds, num_fds);
    for (int i = 0; i < num_fds; i++) close(fds[i]);
}

static void on_child(int number) { (void)number; }

/* Root inside has its capabilities by being root; nobody is to inherit them without. */
static void inherit_no_capability(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) _exit(1);
    if (syscall(SYS_capget, &header, sets) < 0) _exit(1);
    sets[0].inheritable = sets[1].inheritable = 0;
    if (syscall(SYS_capset, &header, sets) < 0) _exit(1);
}

static void set_up(void) {
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP};
    sigset_t children;
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) _exit(1);
    inherit_no_capability();
    if (syscall(SYS_close_range, CONTROL_FD + 1, ~0U, 0) < 0) _exit(1);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    sigaction(SIGCHLD, &action, NULL);
    null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0) _exit(1);
    for (int i = 0; i < 3; i++)
        if (dup2(null_fd, i) < 0) _exit(1);
}

int init_main(void) {
    sigset_t none;
    struct pollfd control = {CONTROL_FD, POLLIN, 0};
    struct reply hello = {.op = REPLY_HELLO, .id = PROTOCOL_VERSION};
    set_up();
    sigemptyset(&none);
    send_reply(&hello);
    for (;;) {
        if (ppoll(&control, 1, NULL, &none) > 0) serve_one();
        while (reap(WNOHANG)) continue;
    }
}
