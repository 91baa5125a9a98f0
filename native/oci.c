/* A box that an OCI runtime makes, instead of bubblewrap.
 *
 * The runtime is never root: it runs as OWNER, a uid of this box alone, and joins a user
 * namespace of the box's that root made for it, in which OWNER is root and the box's user is
 * somebody else. It finds no cgroup that it may write, so it manages none: it works in a group
 * of its own, and PID 1 is moved to the box's groups before it serves, so that limits and
 * counters (out of memory above all) are the supervisor's, and outlive the box.
 *
 * PID 1 reports on MOVE_FD and waits there until it is moved: not a page and not a thread of the
 * runtime's counts as the box's. The launcher is its parent from then on (a subreaper), an
 * unprivileged one, and ends as it does. Bundle and state lie on the box's own tmpfs, beside the
 * tree, in a mount namespace that goes with it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch.h"
#include "protocol.h"

enum { MAX_WORDS = 32 };
#define NAME "box"

static char bundle[4200], state[4200], pid_file[4300];

static void write_new(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0644);
    size_t length = strlen(text);
    if (fd < 0 || write(fd, text, length) != (ssize_t)length) fail("write %s", path);
    close(fd);
}

static void make_bundle(const struct oci_box *box) {
    char path[4400], source[64];
    snprintf(bundle, sizeof bundle, "%s/bundle", box->disk);
    snprintf(state, sizeof state, "%s/state", box->disk);
    snprintf(pid_file, sizeof pid_file, "%s/pid", state);
    if (mkdir(bundle, 0755) < 0) fail("mkdir %s", bundle);
    if (mkdir(state, 0700) < 0 || chown(state, box->owner, box->owner) < 0) fail("mkdir %s", state);
    snprintf(path, sizeof path, "%s/config.json", bundle);
    write_new(path, box->config);
    snprintf(path, sizeof path, "%s/user-namespace", bundle);
    write_new(path, "");
    int fd = make_user_namespace(box->map, box->owner);
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    if (mount(source, path, NULL, MS_BIND, NULL) < 0) fail("bind the user namespace");
    close(fd);
}

static void become(uid_t owner) {
    if (setgroups(0, NULL) < 0 || setresgid(owner, owner, owner) < 0 ||
        setresuid(owner, owner, owner) < 0)
        fail("become %u", owner);
}

/* Whoever dies takes its child along. A change of identity forgets this. */
static void die_with(pid_t parent) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0) fail("prctl");
    if (getppid() != parent) _exit(125);
}

static void run_runtime(const struct oci_box *box, char **words) {
    char *argv[MAX_WORDS];
    int count = 0, status;
    for (char **part = box->runtime; *part && count < MAX_WORDS - 16; part++) argv[count++] = *part;
    argv[count++] = "--root";
    argv[count++] = state;
    while (*words) argv[count++] = *words++;
    argv[count] = NULL;
    pid_t self = getpid(), pid = fork();
    if (pid == 0) {
        become(box->owner);
        die_with(self);
        execve(argv[0], argv, box->environment);
        fail("exec %s", argv[0]);
    }
    if (pid < 0) fail("fork");
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) fail("wait");
    if (status == 0) return;
    fprintf(stderr, "trialyard-box: %s %s failed (wait status %d)\n", argv[0], words[-1], status);
    _exit(125);
}

/* The runtime, which is not trusted as root is, says which process it made: it must be ours. */
static pid_t made_process(void) {
    char text[512] = "";
    int fd = open(pid_file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) fail("read %s", pid_file);
    close(fd);
    pid_t pid = atoi(text);
    snprintf(text, sizeof text, "/proc/%d/stat", pid);
    fd = open(text, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length <= 0) fail("look at process %d of the runtime", pid);
    close(fd);
    text[length] = 0;
    char *after_name = strrchr(text, ')');
    if (!after_name || atoi(after_name + 4) != getpid()) {
        errno = EPERM;
        fail("the runtime named process %d, which is not its own", pid);
    }
    return pid;
}

static void move(pid_t pid, const int *groups, int num_groups) {
    char text[32];
    int length = snprintf(text, sizeof text, "%d", pid);
    for (int i = 0; i < num_groups; i++) {
        if (write(groups[i], text, length) != length) fail("move PID 1 to its cgroup");
        close(groups[i]);
    }
}

/* A socket whose other end is the MOVE_FD of what is started next. */
static int open_move_socket(void) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) fail("socketpair");
    int ours = fcntl(ends[0], F_DUPFD_CLOEXEC, 100), theirs = fcntl(ends[1], F_DUPFD_CLOEXEC, 100);
    close(ends[0]);
    close(ends[1]);
    if (ours < 0 || theirs < 0 || dup2(theirs, MOVE_FD) < 0) fail("dup2");
    close(theirs);
    return ours;
}

static void wait_for_init(int socket) {
    char byte;
    ssize_t length;
    while ((length = read(socket, &byte, 1)) < 0 && errno == EINTR) continue;
    if (length != 1) {
        fputs("trialyard-box: PID 1 did not start\n", stderr);
        _exit(125);
    }
}

/* The other side of it, in PID 1. */
void wait_to_be_moved(void) {
    char byte = 0;
    if (write(MOVE_FD, &byte, 1) != 1) _exit(1);
    while (read(MOVE_FD, &byte, 1) < 0 && errno == EINTR) continue;
    close(MOVE_FD);
}

static int wait_for(pid_t wanted) {
    int status;
    for (;;) {
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno != EINTR) return 125;
        if (pid == wanted) break;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int supervise_oci(const struct oci_box *box) {
    pid_t supervisor = getppid();
    die_with(supervisor);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) fail("prctl");
    make_bundle(box);
    int socket = open_move_socket();
    run_runtime(box, (char *[]){"run", "--detach", "--bundle", bundle, "--preserve-fds", "2",
                                "--pid-file", pid_file, NAME, NULL});
    close(CONTROL_FD);
    close(MOVE_FD);
    pid_t pid = made_process();
    wait_for_init(socket);
    move(pid, box->groups, box->num_groups);
    become(box->owner);
    die_with(supervisor);
    close(socket); /* PID 1 serves from now on, and nobody with a right is above it */
    return wait_for(pid);
}
