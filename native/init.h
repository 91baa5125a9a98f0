/* What the parts of PID 1 know of each other. */
#ifndef TRIALYARD_INIT_H
#define TRIALYARD_INIT_H

#include <sys/resource.h>
#include <sys/types.h>

#include "protocol.h"

enum { MAX_GROUPS = 64 };

struct start {
    char **argv, **env;
    const char *cwd;
    int fds[3];
    const int *extra;
    int num_extra, first_extra_fd;
    gid_t groups[MAX_GROUPS];
    const struct request *request;
    rlim_t marker;
};

/* Starts a command; `*start_errno` is not 0 when it could not be. */
pid_t spawn(const struct start *start, int *start_errno);

/* What is to be killed: a command, or what a command of a shell has started. */
struct target {
    pid_t leader; /* 0: has ended, or was forked by a zygote */
    rlim_t marker;
    int in_shell;
    pid_t session; /* 0: any */
};

/* One pass over /proc; returns how many processes of the target it found. */
int signal_target(const struct target *target, int number);
void kill_lineage(const struct target *target);
void kill_everything(void);

struct command *find_by_leader(pid_t pid);

/* Reaps one child; returns 0 when there is none (left, or ready without waiting). */
int reap(int options);

#endif
