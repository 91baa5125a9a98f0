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
 * RLIMIT_LOCKS, which the kernel keeps but does not use. Ids count up per box. A later command has a lower
 * marker, so a process can only pass itself off as a later command and be killed for it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "protocol.h"

enum { MAX_COMMANDS = 256, MAX_STRINGS = 1 << 16, KILL_DEADLINE_MS = 1500 };
struct command {
    uint32_t id;
    pid_t leader; /* 0: slot is free */
    rlim_t marker;
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

static struct command *find_by_leader(pid_t pid) {
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

/* Reaps one child; returns 0 when there is none (left, or ready without waiting). */
static int reap(int options) {
    int status;
    struct rusage usage;
    pid_t pid = wait4(-1, &status, options, &usage);
    if (pid < 0 && errno == EINTR) return 1;
    if (pid <= 0) return 0;
    struct command *command = find_by_leader(pid);
    if (command) report_exit(command, status, &usage);
    return 1;
}

struct start {
    char **argv, **env;
    const char *cwd;
    int fds[3];
    rlim_t marker;
};

/* Looks argv[0] up in the PATH of the command's own environment, as a shell would. */
static int execute(const struct start *start) {
    const char *name = start->argv[0], *path = "";
    char candidate[8192];
    int error = ENOENT;
    if (strchr(name, '/')) {
        execve(name, start->argv, start->env);
        return errno;
    }
    for (char **entry = start->env; *entry; entry++)
        if (!strncmp(*entry, "PATH=", 5)) path = *entry + 5;
    while (*path && *name) {
        size_t length = strcspn(path, ":");
        snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, path, name);
        execve(candidate, start->argv, start->env);
        if (errno != ENOENT && errno != ENOTDIR) error = errno;
        path += length + (path[length] == ':');
    }
    return error;
}

/* Runs in the vforked child: shares memory with PID 1 until exec, so it only makes calls. */
static int become(const struct start *start) {
    struct rlimit marker = {start->marker, start->marker};
    sigset_t none;
    sigemptyset(&none);
    if (setsid() < 0 || setrlimit(RLIMIT_LOCKS, &marker) < 0) return errno;
    for (int i = 0; i < 3; i++)
        if (dup2(start->fds[i], i) < 0) return errno;
    if (chdir(start->cwd) < 0) return errno;
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    return execute(start);
}

static pid_t spawn(const struct start *start, int *start_errno) {
    volatile int error = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        error = become(start);
        _exit(127);
    }
    *start_errno = pid < 0 ? errno : error;
    return pid;
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
        *slot = (struct command){request->id, pid, start->marker, alone};
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

static void run(const struct request *request, char *body, int *fds, int num_fds) {
    static char *strings[MAX_STRINGS + 2];
    char *end = body + request->body_bytes, *cwd[2];
    int has_stdin = request->flags & FLAG_STDIN ? 1 : 0;
    struct start start = {.argv = strings, .env = strings + request->argc + 1};
    if ((uint64_t)request->argc + request->envc > MAX_STRINGS) {
        answer_not_started(request->id, E2BIG);
        return;
    }
    if (num_fds < 2 + has_stdin || request->argc < 1 ||
        !(body = cut_strings(body, end, cwd, 1)) ||
        !(body = cut_strings(body, end, start.argv, request->argc)) ||
        !cut_strings(body, end, start.env, request->envc)) {
        answer_not_started(request->id, EINVAL);
        return;
    }
    start.cwd = cwd[0];
    start.marker = LOCKS_MARKER - request->id;
    start.fds[0] = has_stdin ? fds[0] : null_fd;
    start.fds[1] = fds[has_stdin];
    start.fds[2] = fds[has_stdin + 1];
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

static pid_t parent_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    char *after_name = strrchr(text, ')');
    return after_name ? atoi(after_name + 4) : 0;
}

static int belongs(pid_t pid, const struct command *command) {
    struct rlimit marker;
    if (prlimit(pid, RLIMIT_LOCKS, NULL, &marker) < 0) return 0;
    for (pid_t ancestor = pid; ancestor > 1; ancestor = parent_of(ancestor)) {
        if (command->leader && ancestor == command->leader) return 1;
        if (find_by_leader(ancestor)) return 0;
    }
    return marker.rlim_max <= command->marker;
}

/* One pass over /proc; returns how many processes of the command it found. */
static int kill_pass(const struct command *command) {
    int found = 0;
    DIR *proc = opendir("/proc");
    if (!proc) return 1;
    for (struct dirent *entry; (entry = readdir(proc));) {
        pid_t pid = atoi(entry->d_name);
        if (pid <= 1 || !belongs(pid, command)) continue;
        found++;
        kill(pid, SIGKILL);
    }
    closedir(proc);
    return found;
}

static void kill_everything(void) {
    kill(-1, SIGKILL);
    while (reap(0)) continue;
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void kill_lineage(const struct command *slot) {
    struct command command = *slot;
    long deadline_ms = now_ms() + KILL_DEADLINE_MS;
    while (kill_pass(&command) > 0) {
        while (reap(WNOHANG)) continue;
        if (now_ms() > deadline_ms) return kill_everything();
        usleep(200);
    }
    while (reap(WNOHANG)) continue;
}

/* A command that is not in the table was forked by a zygote; it has a marker all the same. */
static void kill_command(uint32_t id, uint32_t flags) {
    struct command *slot = find_by_id(id);
    struct command forked = {.id = id, .marker = LOCKS_MARKER - id};
    if (flags & FLAG_ALONE || (slot && slot->alone && num_running == 1))
        kill_everything();
    else
        kill_lineage(slot ? slot : &forked);
    struct reply reply = {.op = REPLY_KILLED, .id = id};
    send_reply(&reply);
}

static void send_signal(uint32_t id, int number) {
    struct command *slot = find_by_id(id);
    if (slot) kill(-slot->leader, number);
}

static void serve_one(void) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec vector = {request_buffer, sizeof request_buffer - 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t length = recvmsg(CONTROL_FD, &message, MSG_CMSG_CLOEXEC);
    if (length < 0 && errno == EINTR) return;
    struct request *request = (struct request *)request_buffer;
    if (length < (ssize_t)sizeof *request) _exit(0); /* the supervisor is gone */
    int fds[8], num_fds = 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS) {
        num_fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(header), num_fds * sizeof(int));
    }
    request_buffer[length] = 0;
    if (request->op == REQUEST_KILL) kill_command(request->id, request->flags);
    if (request->op == REQUEST_SIGNAL) send_signal(request->id, request->signal);
    if (request->op == REQUEST_RUN && request->flags & FLAG_BODY_IN_MEMFD)
        run_from_memfd(request, fds, num_fds);
    else if (request->op == REQUEST_RUN && sizeof *request + request->body_bytes == (size_t)length)
        run(request, request_buffer + sizeof *request, fds, num_fds);
    else if (request->op == REQUEST_RUN)
        answer_not_started(request->id, EINVAL);
    for (int i = 0; i < num_fds; i++) close(fds[i]);
}

static void on_child(int number) { (void)number; }

static void set_up(void) {
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP};
    sigset_t children;
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) _exit(1);
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
