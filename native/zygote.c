/* The zygote: a started interpreter whose forks become commands in boxes.
 *
 * Theory of operation. This library is preloaded into an interpreter that runs as root in a
 * read-only tree like a box's, with nothing in its memory but the interpreter. When its
 * start-up code calls fork(), it serves requests from CONTROL_FD here and does not return;
 * only its forks do. A fork becomes part of a box before it reads a single byte that the
 * box or its command could have chosen: it joins the box's cgroups, enters its namespaces
 * by PID 1's pidfd (the zygote chooses the pid namespace before it forks), becomes the
 * box's user, drops every capability for good, closes every descriptor and loads the seccomp
 * filters. Then fork() returns 0 and the interpreter, now confined exactly like a command that PID 1
 * starts, reads what to run from CONTROL_FD. The zygote is its parent and reports how it ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
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
#include <unistd.h>

#include "protocol.h"

enum { MAX_FORKS = 1024, MAX_FDS = 8, NUM_FILTERS = 2, MAX_GROUPS = 8, MAX_INSTRUCTIONS = 4096 };
enum { BOX_UID = 1000, NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC |
                                    CLONE_NEWUTS | CLONE_NEWCGROUP };

struct job {
    struct fork_request *request;
    char *group, *cwd, *words; /* words: argv and env, NUL-terminated each */
    size_t words_bytes;
    int init, fds[3];
};

static int wanted; /* this process is to be a zygote */
static pid_t (*real_fork)(void);
static struct { uint32_t id; pid_t pid; } forks[MAX_FORKS];
static volatile int *failures; /* shared with forks until they are confined: errno by slot */
static struct sock_fprog filters[NUM_FILTERS];
static int groups[MAX_GROUPS], num_groups;
static char message[sizeof(struct fork_request) + MAX_REQUEST + 1];

__attribute__((constructor)) static void look_around(void) {
    real_fork = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    wanted = getenv("TRIALYARD_ZYGOTE") != NULL;
}

static void load_filters(void) {
    for (int i = 0; i < NUM_FILTERS; i++) {
        struct sock_filter *code = malloc(MAX_INSTRUCTIONS * sizeof *code);
        ssize_t bytes = code ? read(CONTROL_FD + 1 + i, code, MAX_INSTRUCTIONS * sizeof *code) : -1;
        if (bytes <= 0) _exit(1);
        filters[i] = (struct sock_fprog){bytes / sizeof *code, code};
        close(CONTROL_FD + 1 + i);
    }
    for (int fd = CONTROL_FD + 1 + NUM_FILTERS; fcntl(fd, F_GETFD) >= 0; fd++)
        if (num_groups < MAX_GROUPS) groups[num_groups++] = fd;
}

/* --- in the fork: each step returns 0 or leaves errno --------------------------------- */

static int join_groups(const char *name) {
    char path[512];
    if (snprintf(path, sizeof path, "%s/cgroup.procs", name) >= (int)sizeof path) return -1;
    for (int i = 0; i < num_groups; i++) {
        int fd = openat(groups[i], path, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1) return -1;
        close(fd);
    }
    return 0;
}

static int limit(int resource, rlim_t value) {
    struct rlimit both = {value, value};
    return setrlimit(resource, &both);
}

static int drop_privileges(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (prctl(PR_CAPBSET_DROP, capability) < 0) return -1;
    if (setresgid(BOX_UID, BOX_UID, BOX_UID) < 0) return -1;
    if (setresuid(BOX_UID, BOX_UID, BOX_UID) < 0) return -1;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return -1;
    return syscall(SYS_capset, &header, none);
}

static int take_descriptors(const struct job *job) {
    int words[2];
    for (int i = 0; i < 3; i++)
        if (dup2(job->fds[i], i) < 0) return -1;
    if (pipe(words) < 0 || write(words[1], job->words, job->words_bytes) < 0) return -1;
    if (dup2(words[0], CONTROL_FD) < 0) return -1;
    return syscall(SYS_close_range, CONTROL_FD + 1, ~0U, 0);
}

static int confine(const struct job *job) {
    sigset_t no_signals;
    sigemptyset(&no_signals);
    if (join_groups(job->group) < 0 || setgroups(0, NULL) < 0) return -1;
    if (limit(RLIMIT_NOFILE, job->request->open_files) < 0) return -1;
    if (limit(RLIMIT_LOCKS, LOCKS_MARKER - job->request->command) < 0) return -1;
    if (setns(job->init, NAMESPACES) < 0 || drop_privileges() < 0) return -1;
    if (setsid() < 0 || take_descriptors(job) < 0 || chdir(job->cwd) < 0) return -1;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
    for (int i = 0; i < NUM_FILTERS; i++)
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filters[i]) < 0) return -1;
    /* Changing the uid made the process undumpable; its own /proc/self must be its own. */
    if (prctl(PR_SET_DUMPABLE, 1) < 0) return -1;
    signal(SIGCHLD, SIG_DFL);
    return sigprocmask(SIG_SETMASK, &no_signals, NULL);
}

/* The C library's environment; the interpreter's own copy is made from the same words. */
static void set_environment(const struct job *job) {
    uint32_t envc = job->request->run.envc;
    char **entries = calloc(envc + 1, sizeof *entries), *at = job->words;
    if (!entries) _exit(126);
    for (uint32_t i = 0; i < job->request->run.argc + 1; i++) at += strlen(at) + 1;
    for (uint32_t i = 0; i < envc; i++, at += strlen(at) + 1) entries[i] = at;
    environ = entries;
}

/* --- in the zygote -------------------------------------------------------------------- */

static void answer(uint32_t id, int wait_status, int start_errno, const struct rusage *usage) {
    struct reply reply = {.op = REPLY_EXITED, .id = id, .wait_status = wait_status,
                          .start_errno = start_errno};
    if (usage)
        reply.cpu_us = (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000ULL +
                       usage->ru_utime.tv_usec + usage->ru_stime.tv_usec;
    while (send(CONTROL_FD, &reply, sizeof reply, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) _exit(0);
}

static void reap_all(void) {
    int status;
    struct rusage usage;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG, &usage)) > 0;) {
        for (int slot = 0; slot < MAX_FORKS; slot++) {
            if (forks[slot].pid != pid) continue;
            forks[slot].pid = 0;
            answer(forks[slot].id, status, failures[slot], &usage);
            break;
        }
    }
}

static char *skip_string(char *at, char *end) {
    char *stop = at && at < end ? memchr(at, 0, end - at) : NULL;
    return stop ? stop + 1 : NULL;
}

/* The body is: group, cwd, "argc", argv, env. Returns 0 unless it is malformed. */
static int parse(struct job *job, ssize_t length, int *fds, int num_fds) {
    job->request = (struct fork_request *)message;
    struct request *run = &job->request->run;
    if (length != (ssize_t)(sizeof *job->request + run->body_bytes)) return -1;
    char *at = message + sizeof *job->request, *end = message + length;
    job->group = at;
    job->cwd = at = skip_string(at, end);
    job->words = at = skip_string(at, end);
    for (uint32_t i = 0; i < run->argc + run->envc + 1; i++) at = skip_string(at, end);
    if (at != end || num_fds != 4) return -1;
    job->words_bytes = end - job->words;
    job->init = fds[0];
    memcpy(job->fds, fds + 1, sizeof job->fds);
    return 0;
}

/* Returns 1 in the fork, confined; 0 in the zygote. */
static int start(struct job *job) {
    uint32_t id = job->request->run.id;
    int slot = 0;
    while (slot < MAX_FORKS && forks[slot].pid) slot++;
    if (slot == MAX_FORKS) return answer(id, 0, EAGAIN, NULL), 0;
    if (setns(job->init, CLONE_NEWPID) < 0) return answer(id, 0, errno, NULL), 0;
    failures[slot] = 0;
    pid_t pid = real_fork();
    if (pid == 0) {
        if (confine(job) < 0) {
            failures[slot] = errno ? errno : EINVAL;
            _exit(126);
        }
        munmap((void *)failures, MAX_FORKS * sizeof *failures);
        set_environment(job);
        return 1;
    }
    if (pid < 0) return answer(id, 0, errno, NULL), 0;
    forks[slot].id = id;
    forks[slot].pid = pid;
    return 0;
}

static int serve_one(void) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec vector = {message, sizeof message - 1};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.space,
                            .msg_controllen = sizeof control.space};
    ssize_t length = recvmsg(CONTROL_FD, &header, MSG_CMSG_CLOEXEC);
    if (length < 0 && errno == EINTR) return 0;
    if (length < (ssize_t)sizeof(struct fork_request)) _exit(0); /* the supervisor is gone */
    int fds[MAX_FDS], num_fds = 0;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights && rights->cmsg_type == SCM_RIGHTS) {
        num_fds = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(fds, CMSG_DATA(rights), num_fds * sizeof(int));
    }
    struct job job;
    int forked = 0;
    if (parse(&job, length, fds, num_fds) < 0)
        answer(job.request->run.id, 0, EINVAL, NULL);
    else
        forked = start(&job);
    for (int i = 0; !forked && i < num_fds; i++) close(fds[i]);
    return forked;
}

static void on_child(int number) { (void)number; }

static void set_up(void) {
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_NOCLDSTOP};
    struct reply hello = {.op = REPLY_HELLO, .id = PROTOCOL_VERSION};
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    sigaction(SIGCHLD, &action, NULL);
    load_filters();
    failures = mmap(NULL, MAX_FORKS * sizeof *failures, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (failures == MAP_FAILED || fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC) < 0) _exit(1);
    if (send(CONTROL_FD, &hello, sizeof hello, MSG_NOSIGNAL) < 0) _exit(0);
}

pid_t fork(void) {
    struct pollfd control = {CONTROL_FD, POLLIN, 0};
    sigset_t no_signals;
    if (!wanted) return real_fork();
    wanted = 0;
    sigemptyset(&no_signals);
    set_up();
    for (;;) {
        if (ppoll(&control, 1, NULL, &no_signals) > 0 && serve_one()) return 0;
        reap_all();
    }
}
