/* The launcher: from the supervisor's root process to bubblewrap as a nobody.
 *
 * Theory of operation. Options are carried out in the order in which they stand, so the
 * supervisor writes the plan and this file only knows single steps:
 *
 *   --group DIR               make a cgroup (first, so that everything below is limited)
 *   --set FILE VALUE          write one of its settings
 *   --join DIR                become a member of it
 *   --nofile N                descriptors
 *   --tmpfs DIR BYTES INODES  new mount namespace with a tmpfs on DIR: the one writable file
 *                             system of the box, which carries both quotas; DIR/root becomes
 *                             the tree
 *   --map MAP                 from here on, owners of what --overlay, --ro and --devices show
 *                             are mapped: MAP is INSIDE:HOST:COUNT,..., INSIDE an owner as it is
 *                             stored, HOST the host id as which it counts in this box. A HOST
 *                             that begins with '+' counts from the box's own uid, e.g.
 *                             0:+0:65536 (root inside) or 0:0:1000,1000:+0:1 (an ordinary
 *                             user). Whatever the map lacks belongs to nobody. "-": no map
 *   --overlay LOWERS          image layers below a writable layer on that tmpfs, topmost first,
 *                             with ':' between them. With a map their file system must be able
 *                             to map owners; binds fall back to owners as they are
 *   --dir MODE PATH           directory owned by root; parents are made too
 *   --own MODE PATH           directory owned by the box's user
 *   --file PATH TEXT          small file owned by root
 *   --link TARGET PATH        symbolic link
 *   --ro SRC PATH             read-only bind mount, no devices, no setuid
 *   --devices SRC PATH        the same, but device nodes work
 *   --shm PATH                shared memory directory, on the same tmpfs
 *   --devpts PATH             private pseudo-terminals
 *   --open PATH               inherited as the next descriptor after CONTROL_FD
 *   --env NAME=VALUE          instead of an empty environment
 *   --uid N                   the unprivileged uid and gid of the box; stands before --map
 *   --view SRC PATH           bind mount on a PATH of the host, for this box's launcher alone
 *   --oci OWNER MAP CONFIG    PROGRAM is an OCI runtime, run by the uid OWNER with this
 *                             config.json; the box's user namespace has this MAP (oci.c)
 *   --move DIR                cgroup that PID 1 is moved to when an OCI runtime has made it
 *   --enter                   make the tree the root and stay root (zygotes only)
 *
 * PATHs are relative to the tree and never lead out of it, whatever links an image or a
 * snapshot holds. The tree is built as root because the sources may lie where nobody else may
 * look.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch.h"
#include "protocol.h"

/* What an image layer says about renames and partial copies is not obeyed. */
#define OVERLAY_OPTIONS "redirect_dir=nofollow,metacopy=off,index=off"

static char disk[4096], tree[4104];
static int tree_fd = -1;
static uid_t box_uid;
static int next_fd = CONTROL_FD + 1;
static char *environment[32];
static int stays_root;
static struct oci_box oci;
static int map_fd = -1;

void fail(const char *format, ...) {
    int error = errno;
    va_list args;
    va_start(args, format);
    fputs("trialyard-box: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, ": %s\n", strerror(error));
    _exit(125);
}

static unsigned long long number(const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text) {
        errno = EINVAL;
        fail("not a number: %s", text);
    }
    return value;
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    close(fd);
}

static void make_group(const char *directory) {
    if (mkdir(directory, 0755) < 0) fail("make cgroup %s", directory);
}

static void join_group(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    write_file(path, "0");
}

/* A path of the tree as root of all links, so that what an image or a snapshot holds cannot
 * lead a step out of the tree. */
static int open_in_tree(const char *path, unsigned long long flags) {
    struct open_how how = {.flags = flags | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    return syscall(SYS_openat2, tree_fd, path, &how, sizeof how);
}

/* For calls that take no descriptor. */
static const char *path_of(int fd) {
    static char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* Opens one directory of the tree, made where missing; close it. */
static int make_directories(const char *path) {
    char copy[4096];
    int parent = open_in_tree(".", O_PATH | O_DIRECTORY);
    if (parent < 0 || snprintf(copy, sizeof copy, "%s/", path) >= (int)sizeof copy)
        fail("open tree for %s", path);
    for (char *name = copy, *slash; (slash = strchr(name, '/')); name = slash + 1) {
        *slash = 0;
        int fd = open_in_tree(copy, O_PATH | O_DIRECTORY);
        if (fd < 0 && errno == ENOENT && mkdirat(parent, name, 0755) == 0)
            fd = open_in_tree(copy, O_PATH | O_DIRECTORY);
        if (fd < 0) fail("mkdir %s", copy);
        close(parent);
        parent = fd;
        *slash = '/';
    }
    return parent;
}

/* Opens the directory that holds `path`, made where missing; sets the last name. */
static int make_parent(const char *path, const char **name) {
    char parent[4096];
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return make_directories(parent);
}

static void make_directory(const char *path, mode_t mode) {
    int fd = make_directories(path);
    if (chmod(path_of(fd), mode) < 0) fail("chmod %s", path);
    close(fd);
}

static void make_file(const char *path, const char *text) {
    const char *name;
    int parent = make_parent(path, &name);
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) fail("write %s", path);
    close(fd);
    close(parent);
}

static void make_link(const char *target, const char *path) {
    const char *name;
    int parent = make_parent(path, &name);
    if (symlinkat(target, parent, name) < 0 && errno != EEXIST) fail("symlink %s", path);
    close(parent);
}

static void open_tree_fd(void) {
    if (tree_fd >= 0) close(tree_fd);
    tree_fd = open(tree, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tree_fd < 0) fail("open %s", tree);
}

static void mount_tmpfs(const char *where, const char *bytes, const char *inodes) {
    char options[128];
    if (unshare(CLONE_NEWNS) < 0) fail("unshare mount namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) fail("make mounts private");
    snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu", number(bytes),
             number(inodes));
    if (mount("trialyard", where, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount tmpfs on %s", where);
    snprintf(disk, sizeof disk, "%s", where);
    snprintf(tree, sizeof tree, "%s/root", where);
    if (mkdir(tree, 0755) < 0) fail("mkdir %s", tree);
    open_tree_fd();
}

/* Shows every layer through the map, on DISK/layers/N; returns the new names. */
static const char *map_layers(const char *lowers) {
    static char names[64 * 1024];
    char copy[64 * 1024], target[4300];
    size_t length = 0;
    int number = 0;
    if (snprintf(copy, sizeof copy, "%s", lowers) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        fail("image layers");
    }
    snprintf(target, sizeof target, "%s/layers", disk);
    if (mkdir(target, 0755) < 0) fail("mkdir %s", target);
    for (char *layer = strtok(copy, ":"); layer; layer = strtok(NULL, ":"), number++) {
        int fd = clone_mount(layer, map_fd, MS_RDONLY | MS_NOSUID | MS_NODEV);
        if (fd < 0) fail("map the owners of image layer %s", layer);
        snprintf(target, sizeof target, "%s/layers/%d", disk, number);
        if (mkdir(target, 0755) < 0) fail("mkdir %s", target);
        int place = open(target, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (place < 0) fail("open %s", target);
        attach_mount(fd, place);
        close(place);
        length += snprintf(names + length, sizeof names - length, "%slayers/%d",
                           number ? ":" : "", number);
    }
    if (chdir(disk) < 0) fail("chdir %s", disk);
    return names;
}

/* The overlay holds its layers itself. */
static void hide_layers(void) {
    char target[64];
    struct stat status;
    for (int number = 0;; number++) {
        snprintf(target, sizeof target, "layers/%d", number);
        if (stat(target, &status) < 0) break;
        if (umount2(target, MNT_DETACH) < 0 || rmdir(target) < 0) fail("hide %s", target);
    }
    if (rmdir("layers") < 0 || chdir("/") < 0) fail("hide the layers");
}

static void mount_overlay(const char *lowers) {
    static char options[64 * 1024], upper[4200], scratch[4200];
    snprintf(upper, sizeof upper, "%s/upper", disk);
    snprintf(scratch, sizeof scratch, "%s/scratch", disk);
    if (mkdir(upper, 0755) < 0 || mkdir(scratch, 0700) < 0) fail("mkdir below %s", disk);
    if (map_fd >= 0) lowers = map_layers(lowers);
    if (snprintf(options, sizeof options, OVERLAY_OPTIONS ",lowerdir=%s,upperdir=%s,workdir=%s",
                 lowers, upper, scratch) >= (int)sizeof options) {
        errno = ENAMETOOLONG;
        fail("image layers");
    }
    if (mount("trialyard", tree, "overlay", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount overlay of %s", lowers);
    if (map_fd >= 0) hide_layers();
    open_tree_fd();
}

static void make_mount_point(const char *source, const char *path) {
    struct stat status;
    if (stat(source, &status) < 0) fail("stat %s", source);
    if (S_ISDIR(status.st_mode)) {
        close(make_directories(path));
        return;
    }
    const char *name;
    int parent = make_parent(path, &name);
    int fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) fail("create %s", path);
    if (fd >= 0) close(fd);
    close(parent);
}

/* False for kernels and file systems that cannot map owners, which then show as they are. */
static int bind_mapped(const char *source, int target, unsigned long flags) {
    int fd = map_fd < 0 ? -1 : clone_mount(source, map_fd, MS_NOSUID | flags);
    if (fd >= 0) attach_mount(fd, target);
    return fd >= 0;
}

static void bind(const char *source, const char *path, unsigned long flags) {
    make_mount_point(source, path);
    int fd = open_in_tree(path, O_PATH);
    if (fd >= 0 && flags & MS_RDONLY && bind_mapped(source, fd, flags)) {
        close(fd);
        return;
    }
    if (fd < 0 || mount(source, path_of(fd), NULL, MS_BIND, NULL) < 0)
        fail("bind %s on %s", source, path);
    close(fd);
    fd = open_in_tree(path, O_PATH); /* now the root of the new mount */
    if (fd < 0 || mount(NULL, path_of(fd), NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | flags, NULL) < 0)
        fail("remount %s", path);
    close(fd);
}

static void bind_shm(const char *path) {
    char shm[4200];
    snprintf(shm, sizeof shm, "%s/shm", disk);
    if (mkdir(shm, 01777) < 0 || chown(shm, box_uid, box_uid) < 0) fail("mkdir %s", shm);
    bind(shm, path, MS_NODEV);
}

static void mount_devpts(const char *path) {
    int fd = open_in_tree(path, O_PATH | O_DIRECTORY);
    if (fd < 0 || mount("devpts", path_of(fd), "devpts", MS_NOSUID | MS_NOEXEC,
                        "newinstance,ptmxmode=0666,mode=0620,max=64") < 0)
        fail("mount devpts");
    close(fd);
}

static void set_map(const char *map) {
    if (map_fd >= 0) close(map_fd);
    map_fd = strcmp(map, "-") ? make_user_namespace(map, box_uid) : -1;
}

static void own_directory(const char *path, mode_t mode) {
    int fd = make_directories(path);
    if (chown(path_of(fd), box_uid, box_uid) < 0) fail("chown %s", path);
    if (chmod(path_of(fd), mode) < 0) fail("chmod %s", path);
    close(fd);
}

/* Makes a descriptor the first after those that are kept. */
static int move_to_next(int fd, int flags) {
    if (fd == next_fd) {
        if (fcntl(fd, F_SETFD, flags & O_CLOEXEC ? FD_CLOEXEC : 0) < 0) fail("fcntl");
    } else {
        if (dup3(fd, next_fd, flags) < 0) fail("dup3");
        close(fd);
    }
    return next_fd++;
}

static void open_next(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    move_to_next(fd, 0);
}

static void add_environment(char *entry) {
    int at = 0;
    while (environment[at]) at++;
    if (at + 1 >= (int)(sizeof environment / sizeof *environment)) {
        errno = E2BIG;
        fail("--env %s", entry);
    }
    environment[at] = entry;
}

static void enter_tree(void) {
    if (mount(tree, tree, NULL, MS_BIND | MS_REC, NULL) < 0) fail("bind %s", tree);
    if (chdir(tree) < 0 || syscall(SYS_pivot_root, ".", ".") < 0) fail("pivot_root %s", tree);
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0) fail("leave the old root");
    stays_root = 1;
}

static void limit(int resource, rlim_t value) {
    struct rlimit both = {value, value};
    if (setrlimit(resource, &both) < 0) fail("setrlimit");
}

static void set_oci(char **argv) {
    oci.owner = number(argv[0]);
    oci.map = argv[1];
    oci.config = argv[2];
}

/* Opened now, because the runtime is not to see the cgroups; it does not inherit it either. */
static void add_move(const char *directory) {
    char path[4300];
    if (oci.num_groups == (int)(sizeof oci.groups / sizeof *oci.groups)) {
        errno = E2BIG;
        fail("--move %s", directory);
    }
    if (oci.num_groups == 0) next_fd = MOVE_FD + 1;
    snprintf(path, sizeof path, "%s/cgroup.procs", directory);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) fail("open %s", path);
    oci.groups[oci.num_groups++] = move_to_next(fd, O_CLOEXEC);
}

/* Executes one option; returns how many arguments it took. */
static int step(char **argv) {
    const char *name = argv[0];
    if (!strcmp(name, "--group")) return make_group(argv[1]), 2;
    if (!strcmp(name, "--set")) return write_file(argv[1], argv[2]), 3;
    if (!strcmp(name, "--join")) return join_group(argv[1]), 2;
    if (!strcmp(name, "--nofile")) return limit(RLIMIT_NOFILE, number(argv[1])), 2;
    if (!strcmp(name, "--tmpfs")) return mount_tmpfs(argv[1], argv[2], argv[3]), 4;
    if (!strcmp(name, "--map")) return set_map(argv[1]), 2;
    if (!strcmp(name, "--overlay")) return mount_overlay(argv[1]), 2;
    if (!strcmp(name, "--dir")) return make_directory(argv[2], strtol(argv[1], NULL, 8)), 3;
    if (!strcmp(name, "--own")) return own_directory(argv[2], strtol(argv[1], NULL, 8)), 3;
    if (!strcmp(name, "--file")) return make_file(argv[1], argv[2]), 3;
    if (!strcmp(name, "--link")) return make_link(argv[1], argv[2]), 3;
    if (!strcmp(name, "--ro")) return bind(argv[1], argv[2], MS_RDONLY | MS_NODEV), 3;
    if (!strcmp(name, "--devices"))
        return bind(argv[1], argv[2], MS_RDONLY | MS_NOEXEC), 3;
    if (!strcmp(name, "--shm")) return bind_shm(argv[1]), 2;
    if (!strcmp(name, "--devpts")) return mount_devpts(argv[1]), 2;
    if (!strcmp(name, "--open")) return open_next(argv[1]), 2;
    if (!strcmp(name, "--env")) return add_environment(argv[1]), 2;
    if (!strcmp(name, "--view")) {
        if (mount(argv[1], argv[2], NULL, MS_BIND, NULL) < 0) fail("bind %s", argv[1]);
        return 3;
    }
    if (!strcmp(name, "--oci")) return set_oci(argv + 1), 4;
    if (!strcmp(name, "--move")) return add_move(argv[1]), 2;
    if (!strcmp(name, "--enter")) return enter_tree(), 1;
    if (!strcmp(name, "--uid")) {
        box_uid = number(argv[1]);
        return 2;
    }
    errno = EINVAL;
    fail("unknown option %s", name);
    return 0;
}

static void become_nobody(void) {
    if (box_uid == 0) {
        errno = EPERM;
        fail("refusing to start a box as root");
    }
    if (setgroups(0, NULL) < 0) fail("setgroups");
    if (setresgid(box_uid, box_uid, box_uid) < 0) fail("setresgid");
    if (setresuid(box_uid, box_uid, box_uid) < 0) fail("setresuid");
}

static void reset_signals(void) {
    sigset_t none;
    for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int launch_main(int argc, char **argv) {
    int at = 0;
    umask(0);
    reset_signals();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_LOCKS, LOCKS_MARKER);
    write_file("/proc/self/oom_score_adj", "500");
    while (at < argc && strcmp(argv[at], "--")) at += step(argv + at);
    if (at + 1 >= argc) {
        errno = EINVAL;
        fail("no program after --");
    }
    if (syscall(SYS_close_range, next_fd, ~0U, 0) < 0) fail("close_range");
    umask(022);
    if (chdir("/") < 0) fail("chdir");
    if (oci.config) {
        oci.disk = disk;
        oci.runtime = argv + at + 1;
        oci.environment = environment;
        return supervise_oci(&oci);
    }
    if (!stays_root) become_nobody();
    execve(argv[at + 1], argv + at + 1, environment);
    fail("exec %s", argv[at + 1]);
    return 125;
}
